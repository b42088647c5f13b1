"""Rules as values: one line an operator, in tables by kind.

Enters: lines of `rule(...)`. What a line can't say is a pattern, in `in_code`.
"""
