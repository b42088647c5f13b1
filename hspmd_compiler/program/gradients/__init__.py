"""Gradients of a rank summed over others: at the end of a pass, behind each pass, or while backward goes on.

Enters: what the executor does with buckets, and what must hold of their waves.
"""
