"""Annotations: which device holds which part of a tensor, as people write it. No torch.

Enters: the annotation, its parts, its text and its checks. Imports `base` and `layout`.
"""

from .annotation import Addend, Annotation
from .device import DeviceGroup
from .split import Block, Split
from .states import DUPLICATE, PARTIAL, DistributedStates, Duplicate, Partial, Unsplit
from .text import parse_annotation, parse_states

__all__ = [
    "DUPLICATE",
    "PARTIAL",
    "Addend",
    "Annotation",
    "Block",
    "DeviceGroup",
    "DistributedStates",
    "Duplicate",
    "Partial",
    "Split",
    "Unsplit",
    "parse_annotation",
    "parse_states",
]
