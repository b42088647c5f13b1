"""Which types of numbers a program can hold and save."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..base.dtypes import BYTES
from ..errors import TraceError
from .graph import LogicalGraph, Row
from .type_text import dtype_name

NOT_SAVED = frozenset({"complex128"})
"""Files of weights (safetensors) have no such type."""
SHOWN = 5
NARROW = (torch.bfloat16, torch.float16)
"""Types in which a long sum loses its small addends."""


def check_types(graph: LogicalGraph) -> None:
    """Refuse parameters and buffers that no file can hold, and values that no program can name."""
    params = {name: dtype_name(info.dtype) for name, info in graph.params.items()}
    held = [(name, kind) for name, kind in params.items() if kind not in BYTES or kind in NOT_SAVED]
    inputs = {name: dtype_name(info.dtype) for name, info in graph.inputs.items()}
    held += [(f"input {name}", kind) for name, kind in inputs.items() if kind not in BYTES]
    named = {info.row for info in graph.params.values()} | {info.row for info in graph.inputs.values()}
    rows = [
        row for row in graph.rows if row.id not in named and any(kind not in BYTES for kind in _types(row))
    ]
    if held or rows:
        raise TraceError(
            "the model has numbers of a type that can't be kept",
            at=list(dict.fromkeys(row.where for row in rows))[:SHOWN],
            details=[*held, *((row.op, ", ".join(sorted(set(_types(row))))) for row in rows)][:SHOWN],
            rule=f"values are of the types {', '.join(BYTES)}; parameters and buffers not of complex128,"
            " which safetensors files don't have",
            fix="keep them in one of these types, and convert where they are used",
        )


def _types(row: Row) -> Iterator[str]:
    for meta in row.outs or ():
        if meta is not None:
            yield dtype_name(meta[1])
    if row.dtype is not None:
        yield dtype_name(row.dtype)
