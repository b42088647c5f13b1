"""Proofs of a program for micro-batches of any size: at its first compile, and at plans that none saw.

Enters: `compare_plans`, which trains by plans beside the eager model.
"""
