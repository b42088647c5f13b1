"""The Python API: plan and compile a model, look at it, prove it, and load one rank of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from .base.devices import DeviceKind
from .errors import OptionError, RunError
from .options import (
    Arithmetic,
    Capture,
    OptimizerConfig,
    PlanChoice,
    PlanCost,
    PlanMethod,
    PlanSpace,
    Precision,
    check_choices,
)
from .strategy.strategy import Strategy

if TYPE_CHECKING:
    from .artifact.store import Artifact
    from .cluster.cluster import ClusterSpec
    from .compiled_bundle import BundleEntry, CompiledBundle, GivenStrategy
    from .compiler import Compiled
    from .cost_models.estimate import Estimate
    from .models.compile_subject import Factory
    from .models.models import ModelSource
    from .pages.sections import Section
    from .program.sized.step_plan import StepPlan
    from .runtime.engine import Engine
    from .synthesizer.planner.plan import Plan
    from .verify.artifact import VerifyReport
    from .verify.proof_data import GivenBatches

Inputs = Mapping[str, torch.Tensor]


class CompiledProgram:
    """One program per rank, in memory; `save` writes what `load` and `hspmd run` read."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled

    @property
    def artifact(self) -> Artifact:
        """Everything that is saved."""
        return self._compiled.artifact

    @property
    def traced(self) -> str:
        """How much of the model was traced, and why."""
        return self._compiled.traced

    def save(
        self, directory: str | Path, *, weights: bool = True, rank: int | None = None, force: bool = False
    ) -> None:
        """Write the artifact; weights: those of a live model too. rank: only what this rank needs."""
        from .artifact.write import write
        from .models.compile_subject import whole_weights

        live = self._compiled.live
        held = whole_weights(live) if live is not None and weights else None
        self._compiled.artifact = write(directory, self.artifact, weights=held, rank=rank, force=force)

    def inspect(self, *, rank: int | None = None, tensor: str | None = None) -> list[Section]:
        """Tables about all ranks, one rank's program, or the life of one tensor."""
        from .pages import inspect

        if rank is not None:
            return inspect.rank_page(self.artifact, rank)
        if tensor is not None:
            from .pages.tensor_life import tensor_sections

            return tensor_sections(self.artifact, tensor)
        return inspect.overview(self.artifact)

    def verify(
        self,
        *,
        values: bool = False,
        rows: bool = False,
        model: ModelSource | Factory | nn.Module | None = None,
        batch: Inputs | GivenBatches | Iterable[Inputs] | None = None,
        symbolic: bool = False,
    ) -> VerifyReport:
        """Step all ranks in this process; VerifyError at the first misfit or wrong number.

        model: to be compared with, instead of what was compiled. batch: a global batch, or several, instead
        of random ones; of a program with `sizes` as its steps take them, rows or a pair with a plan.
        symbolic: where sizes vary, the model's code is run on symbols, too.
        """
        from .models.compile_subject import source_of
        from .verify.artifact import verify_artifact

        given = self._compiled.model if model is None else model
        source = given if given is None or isinstance(given, nn.Module) else source_of(given)
        examples = self._compiled.examples if model is None else None
        return verify_artifact(
            self.artifact,
            values=values,
            rows=rows,
            model=source,
            examples=examples,
            batches=_given(self.artifact, batch),
            symbolic=symbolic,
        )

    def estimate(
        self, cluster: ClusterSpec | str | Path | Mapping[str, object], plan: StepPlan | None = None
    ) -> Estimate:
        """The price of a step on a cluster, given as a file, its form or a ClusterSpec.

        plan: what the step runs, where sizes vary; None: the strategy's numbers of micro-batches, each of the
        range's end.
        """
        from .compiler import cluster_from
        from .cost_models.estimate import estimate_artifact

        return estimate_artifact(self.artifact, *cluster_from(cluster), plan)

    def fx(self, rank: int) -> torch.fx.GraphModule:
        """The program of one rank as a runnable GraphModule."""
        from .program.fx.to_fx import rank_module
        from .runtime.torch_transport import of_process_group

        return rank_module(self.artifact.program, rank, of_process_group)


def compile(
    model: ModelSource | Factory | nn.Module | str,
    example_inputs: Inputs | None = None,
    *,
    strategy: Strategy | str | Path | Mapping[str, object],
    optimizer: OptimizerConfig | str | Mapping[str, object] | None = None,
    device: DeviceKind | str = DeviceKind.CPU,
    dump: str | Path | None = None,
    capture: Capture | str = Capture.AUTO,
    precision: Precision | str = Precision.MODEL,
    cluster: ClusterSpec | str | Path | Mapping[str, object] | None = None,
    symbolic: bool = False,
) -> CompiledProgram:
    """Compile a model for a strategy.

    model: a factory that returns (model, example_inputs), whose initialiser is recorded, a live model, or a
    name as on the command line. example_inputs: dict whose dim 0 is replaced by the strategy's micro-batch
    sizes.
    strategy: a Strategy, a dict, or a file. optimizer: its options, or its name alone. dump: a folder for
    the text of each step. capture: "auto" traces one of several equal blocks where a recorded step proves
    that the others are the same, "full" all. precision: "model" computes in the types of the model,
    "bfloat16" in that one, while parameters, gradients and the optimizer's state stay in the model's.
    cluster: machines whose links decide between ways of converting a layout that are equally right, as a
    file, its form or a ClusterSpec; gradients and ZeRO's rows are exchanged the same way on all. symbolic:
    where sizes vary, code of the model that looks at how many there are is looked for by a run on symbols.
    """
    from .compiler import compile_model, cost_on
    from .strategy.formats.read import read_strategy

    _check_compile(device, capture, precision)
    if not isinstance(strategy, (Strategy, str, Path, Mapping)):
        raise OptionError(
            f"the strategy is a {type(strategy).__name__}",
            rule="a strategy is a file, a text, a dict, or a Strategy",
            fix="docs/strategy.md shows each; several are compiled by hspmd.compile_bundle",
        )
    plan = strategy if isinstance(strategy, Strategy) else read_strategy(strategy)
    config = OptimizerConfig.of(optimizer)
    cost, form = (None, None) if cluster is None else cost_on(cluster, plan)
    compiled = compile_model(
        model,
        example_inputs,
        plan,
        config,
        DeviceKind(device),
        None if dump is None else Path(dump),
        Capture(capture),
        Precision(precision),
        cost,
        form,
        symbolic,
    )
    return CompiledProgram(compiled)


def compile_bundle(
    model: ModelSource | Factory | nn.Module | str,
    example_inputs: Inputs | None = None,
    *,
    strategies: Mapping[str, GivenStrategy | BundleEntry] | Sequence[GivenStrategy | BundleEntry],
    switch: str | Iterable[tuple[str, str]] | None = None,
    home: str | None = None,
    optimizer: OptimizerConfig | str | Mapping[str, object] | None = None,
    device: DeviceKind | str = DeviceKind.CPU,
    dump: str | Path | None = None,
    capture: Capture | str = Capture.AUTO,
    precision: Precision | str = Precision.MODEL,
    cluster: ClusterSpec | str | Path | Mapping[str, object] | None = None,
) -> CompiledBundle:
    """Compile a model for several strategies, and the plans of switches between them.

    strategies: by name, or files, which are called as the file without its ending; a BundleEntry has inputs
    of its own. switch: `"A:B,B:A"`, or pairs of names; None: every ordered pair. home: the strategy that
    keeps the optimizer's state in steps of two layouts. Else as `compile`.
    """
    from .compiled_bundle import compile_entries, named_entries
    from .compiler import cluster_from

    _check_compile(device, capture, precision)
    return compile_entries(
        model,
        example_inputs,
        named_entries(strategies),
        switch,
        home,
        OptimizerConfig.of(optimizer),
        DeviceKind(device),
        None if dump is None else Path(dump),
        Capture(capture),
        Precision(precision),
        None if cluster is None else cluster_from(cluster),
    )


def _check_compile(device: DeviceKind | str, capture: Capture | str, precision: Precision | str) -> None:
    choices = {
        "device": (DeviceKind, device),
        "capture": (Capture, capture),
        "precision": (Precision, precision),
    }
    check_choices("compile", choices)


def plan(
    model: ModelSource | Factory | nn.Module | str,
    example_inputs: Inputs | None = None,
    *,
    cluster: ClusterSpec | str | Path | Mapping[str, object],
    method: PlanMethod | str = PlanMethod.PROGRAM,
    global_batch: int | None = None,
    space: PlanSpace | str = PlanSpace.FULL,
    cost: PlanCost | str = PlanCost.CLUSTER,
    optimizer: OptimizerConfig | str | Mapping[str, object] | None = None,
    capture: Capture | str = Capture.AUTO,
    precision: Precision | str = Precision.MODEL,
) -> Plan:
    """Find the quickest strategy for a model on these machines that their memory holds.

    model, example_inputs, optimizer, capture, precision: as for `compile`, which takes the plan's `strategy`.
    cluster: a file, its form or a ClusterSpec. method: how it is found. global_batch: samples of a step;
    without it the example's for each device. space: programs that are searched, all that the rules of
    operators allow or HAP's. cost: what they are compared by before the best few are compiled and priced.
    """
    from .compiler import cluster_from, planned

    choices = {
        "method": (PlanMethod, method),
        "space": (PlanSpace, space),
        "cost": (PlanCost, cost),
        "capture": (Capture, capture),
        "precision": (Precision, precision),
    }
    check_choices("plan", choices)
    return planned(
        model,
        example_inputs,
        cluster_from(cluster),
        OptimizerConfig.of(optimizer),
        PlanChoice(PlanSpace(space), PlanCost(cost)),
        global_batch,
        Capture(capture),
        Precision(precision),
    )


def verify(
    artifact: Artifact,
    *,
    values: bool = False,
    rows: bool = False,
    model: ModelSource | Factory | nn.Module | None = None,
    trust_model: bool = False,
    batch: Inputs | GivenBatches | Iterable[Inputs] | None = None,
    symbolic: bool = False,
) -> VerifyReport:
    """Prove an artifact: that all ranks fit, and with `values` or `rows` that they compute the model.

    model: what to compare with; without one, a built-in model or HF config that the artifact was compiled
    from is made again, and with `trust_model` even a factory is imported that the artifact names. batch: a
    global batch, or several, instead of random ones. symbolic: see `CompiledProgram.verify`.
    """
    from .models.compile_subject import source_of
    from .verify.artifact import verify_artifact

    given = model if model is None or isinstance(model, nn.Module) else source_of(model)
    return verify_artifact(
        artifact,
        values=values,
        rows=rows,
        model=given,
        trust_model=trust_model,
        from_file=True,
        batches=_given(artifact, batch),
        symbolic=symbolic,
    )


def load(
    directory: str | Path,
    *,
    strategy: str | None = None,
    timeout: float = 300.0,
    start_timeout: float = 120.0,
    deterministic: bool = False,
    torch_compile: bool = False,
    cuda_graphs: bool = False,
) -> Engine:
    """The engine of this process's rank (from the environment that torchrun sets).

    strategy: of a bundle of several, the name of the one to begin with; None: the first.
    timeout: seconds that one message between ranks may take, and that a rank may be silent, before all
    ranks end with an error that names it. start_timeout: seconds for all ranks to come up.
    deterministic: parameters get the bits of torch.optim's default, not those of its fused kernels.
    torch_compile: runs of operators are compiled by torch.compile, and may round otherwise.
    cuda_graphs: small runs are replayed as CUDA graphs.
    """
    from .runtime.start.opening import StartOptions, open_engine
    from .runtime.start.rendezvous import Timeouts
    from .verify.shape.fit import check_rank

    path = Path(directory)
    if not path.exists():
        raise RunError(
            f"there is no artifact at {directory}",
            fix="compile one with `hspmd compile MODEL --strategy S -o DIR`",
        )
    waits = {"timeout": timeout, "start_timeout": start_timeout}
    wrong = [(name, f"{value}: seconds above 0") for name, value in waits.items() if not value > 0]
    if wrong:
        raise RunError("the ranks can't be started", details=wrong)
    timeouts = Timeouts(timedelta(seconds=start_timeout), timedelta(seconds=timeout))
    options = StartOptions(
        timeouts=timeouts,
        check=check_rank,
        strategy=strategy,
        arithmetic=Arithmetic(deterministic, torch_compile, cuda_graphs),
    )
    return open_engine(path, options).engine


def _given(artifact: Artifact, batch: Inputs | GivenBatches | Iterable[Inputs] | None) -> GivenBatches:
    from .verify.artifact import STEPS
    from .verify.proof_data import given_to

    return [] if batch is None else given_to(artifact.program, batch, STEPS)
