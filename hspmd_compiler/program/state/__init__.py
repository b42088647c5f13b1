"""The state of a rank by its elements: which it holds and needs, and where they lie in its tensors.

Enters: what planning, moving and proving a switch of strategies have in common.
"""
