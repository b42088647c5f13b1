"""Programs for micro-batches of any size: which sizes are compiled, and what they have in common.

Enters: what chooses probes, what explains numbers that differ, and what makes one program of several.
"""
