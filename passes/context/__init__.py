"""Pipelines that share sequences: each is compiled for its own tokens, then attention is where they meet.

Enters: a strategy with context groups, and a model that can be traced at any number of tokens.
"""
