"""Ranks that watch each other: who is silent, who is late, who calls another method.

Enters: what ends a call that can't succeed, on every rank, with the cause.
"""
