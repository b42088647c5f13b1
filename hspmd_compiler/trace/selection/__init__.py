"""Rows that a boolean mask selects, traced with static shapes: every row is kept, and the mask beside it.

Enters: what functions of torch do with selected rows.
"""
