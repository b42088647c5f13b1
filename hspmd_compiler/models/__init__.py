"""MODEL as a user names it, a built-in one, a HF configuration or a factory, becomes a model.

Enters: what finds and builds models. Imports `trace` and below.
"""
