"""A module and an example batch become one logical graph of forward and backward.

Enters: all that sees the user's model run. Imports `ir` and `rules`; no strategy and no pass.
"""
