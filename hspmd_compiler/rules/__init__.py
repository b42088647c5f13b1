"""What each operator does to layouts: one rule an operator, and what rules ask of their operands.

Enters: what holds for operators of any model and strategy. Imports `ir` and what lies below it.
"""
