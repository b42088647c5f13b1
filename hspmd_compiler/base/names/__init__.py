"""Names of models: which a factory is known by, and how one that is importable is found.

Enters: what the command line and the builder of models have in common about names.
"""
