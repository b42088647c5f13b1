"""How segments are made, as a run asks for it."""

from __future__ import annotations

from functools import partial

from ...base.devices import DeviceKind
from ...base.log import logger
from ..codegen import MakeSegment
from .cuda_graphs import GraphedRun
from .torch_compiled import RowsFunction, by_torch, compile_pieces


def segment_maker(torch_compile: bool, cuda_graphs: bool, device: str) -> MakeSegment | None:
    """What stands for `compile_segment`, None: itself. device: its kind, which an index may follow."""
    graphs = cuda_graphs
    if graphs and not device.startswith(DeviceKind.CUDA.value):
        logger.warning("CUDA graphs are of CUDA devices: on this one the program runs as it stands")
        graphs = False
    if not (graphs or torch_compile):
        return None

    def compiler(rows: RowsFunction) -> RowsFunction:
        made = by_torch(rows) if torch_compile else rows
        return GraphedRun(made) if graphs else made

    return partial(compile_pieces, compiler=compiler)
