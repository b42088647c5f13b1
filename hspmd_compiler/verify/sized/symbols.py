"""The symbolic run of an artifact's model: its range, and inputs of which shapes count alone."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import OptionError
from ...ir.graph import LogicalGraph
from ...program.sized.size_range import SizeRange
from ...program.sized.sizes import Count
from ...trace.symbolic import SymbolRange, without_sizes


def symbols_of(sizes: SizeRange) -> SymbolRange:
    """What varies, and from where to where."""
    return SymbolRange(sizes.low, sizes.high, sizes.unit is Count.TOKENS)


def shapes_of(graph: LogicalGraph) -> dict[str, Tensor]:
    """Inputs as the graph has them, without memory."""
    return {
        name: torch.empty(info.shape, dtype=info.dtype, device="meta") for name, info in graph.inputs.items()
    }


def sizes_wanted() -> OptionError:
    """For a program of one size."""
    return without_sizes("the program is of one size")
