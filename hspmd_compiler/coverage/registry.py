"""All models of the matrix.

To add one: write a factory without arguments that builds it (tiny, in training mode) and a function that
draws a batch of SAMPLES samples, and enter a `CoveredModel` of both in the tuple of its file. README's
table is then what `hspmd coverage --markdown` prints.
"""

from __future__ import annotations

from .convolutional_models import CONVOLUTIONAL_MODELS
from .hand_written_models import HAND_WRITTEN_MODELS
from .model import CoveredModel
from .transformers_models import TRANSFORMERS_MODELS

MODELS: tuple[CoveredModel, ...] = (
    *TRANSFORMERS_MODELS,
    *HAND_WRITTEN_MODELS,
    *CONVOLUTIONAL_MODELS,
)
