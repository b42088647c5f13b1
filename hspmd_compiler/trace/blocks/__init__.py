"""Models of repeated blocks: each kind is traced once, expanded, and proved to be the same.

Enters: what compares, shortens and expands repeated blocks.
"""
