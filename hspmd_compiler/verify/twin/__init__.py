"""The proof of a program that is too large to run, by a smaller program of the same code.

Enters: what compares the two programs, and what shrinks the first.
"""
