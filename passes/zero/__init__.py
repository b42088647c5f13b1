"""ZeRO: who stores which elements, and how sums and parameters move.

`zero.py` cuts what is stored, `collectives.py` plans reduce-scatters of gradients and all-gathers of
parameters, and `param_gather.py` places those of ZeRO-3 inside a step.

Enters: what shares out parameters, gradients and optimizer state among their holders.
"""
