"""A Strategy as values, its rules, and the forms that it is read from and written to. No torch.

Files, also of ours, are read by `formats/read.py`; keys of ours are in `form.py`, and `base/forms.py` tells
misspelt ones. Orders such as 1F1B are made in `schedules/`.

Enters: what is said of devices, stages, degrees and micro-batches, before any model is seen.
"""

from .strategy import PipelineSpec, StageSpec, Strategy

__all__ = ["PipelineSpec", "StageSpec", "Strategy"]
