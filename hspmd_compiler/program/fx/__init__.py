"""A rank's program as a torch.fx graph.

Enters: what writes the graph, and what it calls beside kernels.
"""
