"""Proofs of switches between strategies: every rank gets what it needs, and the very bits.

Enters: what is proved of a switch plan, of all ranks together.
"""
