"""The matrix of models and strategies that compile to exactly what one device computes.

Enters: a model or a strategy of the matrix, each with its line in `registry.py` or `strategies.py`.
"""
