"""The steps of a compile, in order."""

from __future__ import annotations

from ..base.devices import DeviceKind
from ..options import Capture, Precision
from ..strategy.strategy import Strategy
from .compile_state import Example, Traced
from .lower.lower import Lowered
from .pass_chain import Chain, begin
from .steps.annotate import Annotate
from .steps.batch_levels import Levels
from .steps.causal_mask import CausalMask
from .steps.deduce import Deduce
from .steps.grad_sync import GradSync
from .steps.liveness import Liveness
from .steps.lower import Lower
from .steps.param_gather import ParamGather
from .steps.recompute import RecomputePass
from .steps.resolve_comm import ResolveComm
from .steps.saved_memory import SavedMemory
from .steps.schedule import Schedule
from .steps.segments import Segments
from .steps.step_counts import StepCounts
from .steps.trace import Trace
from .steps.zero import Zero


def tracing(
    capture: Capture = Capture.AUTO, precision: Precision = Precision.MODEL
) -> Chain[Example, Traced]:
    """From a model to its logical graph, the same for every strategy with as many samples."""
    return begin(Trace(capture, precision)).then(CausalMask())


def planning(strategy: Strategy, device: DeviceKind = DeviceKind.CPU) -> Chain[Traced, Lowered]:
    """From a logical graph to the programs of all ranks."""
    return (
        begin(Annotate(strategy))
        .then(Deduce())
        .then(Liveness())
        .then(RecomputePass())
        .then(StepCounts())
        .then(ParamGather())  # behind what copies rows: gathers stand before the first use that is left
        .then(Levels())  # rows move no more
        .then(Zero())  # what is gathered inside is shared out alone
        .then(GradSync())
        .then(Segments())
        .then(ResolveComm())  # behind GradSync: steps are numbered in this order
        .then(Schedule())
        .then(SavedMemory())
        .then(Lower(device))
    )
