"""Batches for training: from a user's factory or from text files, checked and resumable.

Enters: sources of batches, and what is checked of a batch.
"""
