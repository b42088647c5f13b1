"""The steps of a compile, in order."""

from __future__ import annotations

from ..base.comm_plan import CostModel
from ..base.devices import DeviceKind
from ..options import Capture, Precision
from ..strategy.strategy import Strategy
from .annotate import NO_CUTS, Annotate, TokenCuts
from .batch_levels import Levels
from .causal_mask import CausalMask
from .compile_state import Deduced, Example, Traced
from .deduce import Deduce
from .grad_sync import GradSync
from .liveness import Liveness
from .lower.lower import Lower, Lowered
from .packed.packed_mask import PackedMask
from .pass_chain import Chain, begin
from .recompute import RecomputePass
from .resolve_comm import ResolveComm
from .saved_memory import SavedMemory
from .schedule import Schedule
from .segments import Segments
from .step_counts import StepCounts
from .trace import Trace
from .zero.param_gather import ParamGather
from .zero.zero import Zero


def tracing(
    capture: Capture = Capture.AUTO,
    precision: Precision = Precision.MODEL,
    anchors: tuple[str, ...] | None = None,
) -> Chain[Example, Traced]:
    """From a model to its logical graph, the same for every strategy with as many samples.

    anchors: globs over names of places that get an anchor, for layouts of a strategy; None: none.
    """
    return begin(Trace(capture, precision, anchors)).then(CausalMask()).then(PackedMask())


def planning(
    strategy: Strategy,
    device: DeviceKind = DeviceKind.CPU,
    cost: CostModel | None = None,
    cuts: TokenCuts = NO_CUTS,
) -> Chain[Traced, Lowered]:
    """From a logical graph to the programs of all ranks. cost: what ways of communication are compared by.

    cuts: of tokens under sequence parallelism, where they are not even.
    """
    return laying_out(strategy, cost, cuts).joined(programming(device, cost))


def laying_out(
    strategy: Strategy, cost: CostModel | None = None, cuts: TokenCuts = NO_CUTS
) -> Chain[Traced, Deduced]:
    """How every value lies, in each pipeline."""
    return begin(Annotate(strategy, cuts)).then(Deduce(cost))


def programming(
    device: DeviceKind = DeviceKind.CPU, cost: CostModel | None = None
) -> Chain[Deduced, Lowered]:
    """From pipelines whose values are laid out to programs."""
    return (
        begin(Liveness())
        .then(RecomputePass())
        .then(StepCounts())
        .then(ParamGather())  # behind what copies rows: gathers stand before the first use that is left
        .then(Levels())  # rows move no more
        .then(Zero())  # what is gathered inside is shared out alone
        .then(GradSync(cost))
        .then(Segments())
        .then(ResolveComm())  # behind GradSync: steps are numbered in this order
        .then(Schedule())
        .then(SavedMemory())
        .then(Lower(device))
    )
