"""Values and small means that every room may use: names, sizes, texts, readers, steps of communication.

Enters: what knows nothing of layouts, graphs or strategies. Imports `errors` only, and no torch.
"""
