"""The passes as values, each in a file of its name: its options, what it decides as text, its check.

Enters: one module for each line of `pipeline.py`; what it computes with is beside this folder.
"""
