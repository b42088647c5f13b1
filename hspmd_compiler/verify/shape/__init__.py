"""Programs run by shape: sizes, types, memory, and who uses which gradient; no numbers.

Enters: what is proved without numbers.
"""
