"""Attention over a sequence that several members hold by pieces: who sends what, what is computed between.

Enters: the members of a context-parallel group, their ranks, heads and tokens. Pure; no torch.
"""
