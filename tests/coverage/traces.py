"""The models of the matrix, each traced once for all tests that look at it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from hspmd_compiler.coverage.matrix import TracedModel, trace_model
from hspmd_compiler.coverage.model import CoveredModel
from hspmd_compiler.coverage.registry import MODELS
from hspmd_compiler.verify.shape.shape_segments import ShapeBook

from ..fit import OPERATORS

BY_NAME = {model.name: model for model in MODELS}


def traced(model: CoveredModel) -> TracedModel:
    """As the matrix traces it."""
    return _traced(model.name)


@cache
def _traced(name: str) -> TracedModel:
    return replace(trace_model(BY_NAME[name]), shapes=ShapeBook(OPERATORS))
