"""Inside a step: one global batch run in parts, each under a strategy of its own, and updated once.

`parts.py` says how much each part weighs in loss and gradients: parts may have unequal samples and labels.

Enters: what `Engine.hot_step` needs beside a step of one strategy.
"""
