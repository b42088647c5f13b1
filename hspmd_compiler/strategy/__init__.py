"""A Strategy as values, its rules, and the forms that it is read from and written to. No torch.

Enters: what is said of devices, stages, degrees and micro-batches, before any model is seen.
"""

from .strategy import PipelineSpec, StageSpec, Strategy

__all__ = ["PipelineSpec", "StageSpec", "Strategy"]
