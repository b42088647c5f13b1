"""Communication that is started in one place and ended in another.

Enters: what holds tensors and handles meanwhile.
"""
