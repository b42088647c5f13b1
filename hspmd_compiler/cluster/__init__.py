"""Machines, their devices and links; and which node starts which ranks. No torch.

Enters: values, their readers and launch plans. Imports `strategy` and below.
"""

from .cluster import ClusterSpec
from .read import read_cluster, write_cluster

__all__ = ["ClusterSpec", "read_cluster", "write_cluster"]
