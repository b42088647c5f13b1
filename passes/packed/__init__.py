"""Attention of packed rows: masks that positions tell become an operator.

Enters: what finds masks of documents in a graph, and heads that are copies of one.
"""
