"""Rules against the whole operator: calls are made, split as the rule says, run and compared.

Enters: what makes and splits operands, and what judges results.
"""
