"""ZeRO: who stores which elements, and how sums and parameters move.

Enters: what shares out parameters, gradients and optimizer state among their holders.
"""
