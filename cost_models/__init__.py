"""Prices of a compiled strategy on a described cluster.

Enters: models of time and memory. Imports `ir`, `rules`, `cluster` and below; no pass.
"""
