"""Tensors in files: a model's parameters, everything that training goes on from, first parameters.

Enters: what reads and writes whole tensors for ranks that hold pieces.
"""
