"""Gradients that are summed while backward goes on: which together, and behind which rows of each stage.

Enters: what decides when the sum of a gradient starts.
"""
