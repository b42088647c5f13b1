"""What dims are made of, found without names: which ones tensor parallelism may split, and together.

Enters: terms of dims, and what follows from them for parameters.
"""
