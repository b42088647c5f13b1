"""Prices of published plans from their own tables of layers and links, beside measured steps.

A program of ours is priced in the folder above, from its own instructions.

Enters: what `benchmarks/price_truth.py` prices by.
"""
