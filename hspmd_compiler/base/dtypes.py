"""Element types that plans and artifacts may name, with their sizes; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


@dataclass(frozen=True, slots=True)
class ElementType:
    """What is asked of a torch.dtype where a tensor is known by its type alone."""

    name: str
    itemsize: int

    @property
    def is_floating_point(self) -> bool:
        return "float" in self.name

    @property
    def is_complex(self) -> bool:
        return self.name.startswith("complex")

    def __str__(self) -> str:
        return self.name


ELEMENT_TYPES: Mapping[str, ElementType] = {name: ElementType(name, size) for name, size in BYTES.items()}
"""By torch's names; one object for each."""
