"""Inside a step: one global batch run in parts, each under a strategy of its own, and updated once.

Enters: what `Engine.hot_step` needs beside a step of one strategy.
"""
