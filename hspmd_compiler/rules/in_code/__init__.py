"""Rules whose local rows are written by hand, and what they share.

Enters: a pattern, with its line in `lines`, which says what may split.
"""
