"""Ranks that watch each other: who is silent, who is late, who calls another method.

A process of ours that ends is seen where it was started, in `start/processes.py`.

Enters: what ends a call that can't succeed, on every rank, with the cause.
"""
