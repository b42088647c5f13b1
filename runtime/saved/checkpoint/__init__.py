"""Checkpoints: what training goes on from, in a folder of files that all ranks write while steps go on.

Enters: an engine and its data, a folder; leaves: folders that are there whole or not at all.
"""
