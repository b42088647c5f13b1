"""Carries the state of training from one strategy's places to another's, in rounds of bounded memory.

Enters: a switch plan, what this rank holds, and where the next strategy keeps it.
"""
