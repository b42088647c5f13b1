"""Strategies in the languages of published systems: each module reads one of them to an Expanded.

Enters: one module for each language, and its line in `read.py`.
"""
