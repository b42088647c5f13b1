"""What a forward pass reads, changes and keeps in Python, where no graph sees it.

Enters: what finds such places, compares them and puts them back.
"""
