"""Runs rank programs: one process per rank, torch.distributed between them.

Enters: what a training node does. Imports `program`, `artifact` and below: no compiler, no tracing.
"""
