"""Several strategies of one model, compiled together with the plans of switches between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from torch import nn

from .artifact.alike import check_alike
from .artifact.bundle import no_plan, no_strategy
from .artifact.write_bundle import BundleContent, check_names, write_bundle
from .compiler import CompileJob, compile_several
from .errors import OptionError
from .models.compile_subject import Factory, Inputs, whole_weights
from .passes.losses.prove import of_all
from .program.switch_plan import SwitchPlan, SwitchScope
from .strategy.formats.read import read_strategy
from .strategy.strategy import Strategy
from .switching.links import SwitchLinks, links_of
from .switching.several import Pair, plan_several, wanted_pairs, world_of

if TYPE_CHECKING:
    from .artifact.proved_loss import ProvedLoss
    from .artifact.store import Artifact
    from .base.devices import DeviceKind
    from .cluster.cluster import ClusterSpec
    from .compiler import Compiled
    from .models.models import ModelSource
    from .options import Capture, OptimizerConfig, Precision
    from .pages.sections import Section
    from .verify.switching.bundle import BundleReport

GivenStrategy: TypeAlias = Strategy | str | Path | Mapping[str, object]


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """A strategy of a bundle, with what is its own.

    example_inputs: such as samples of another length. model: another source of the same parameters, such as
    the same built-in model for sequences of another length. None: those of all.
    """

    strategy: GivenStrategy
    example_inputs: Inputs | None = None
    model: ModelSource | Factory | str | None = None


class CompiledBundle:
    """Programs of several strategies and plans of switches, in memory; `save` writes what `load` reads."""

    def __init__(
        self,
        compiled: Mapping[str, Compiled],
        plans: Sequence[SwitchPlan],
        links: SwitchLinks,
        home: str | None,
        loss: ProvedLoss | None = None,
    ) -> None:
        self._compiled = dict(compiled)
        self.plans = tuple(plans)
        self.links = links
        self.home = home
        self.loss = loss

    @property
    def artifacts(self) -> dict[str, Artifact]:
        """Everything that is saved of each strategy."""
        return {name: each.artifact for name, each in self._compiled.items()}

    @property
    def traced(self) -> dict[str, str]:
        """How much of the model was traced for each strategy, and why."""
        return {name: each.traced for name, each in self._compiled.items()}

    def save(self, directory: str | Path, *, weights: bool = True, force: bool = False) -> None:
        """Write the bundle; weights: those of a live model too, for each strategy."""
        live = next((each.live for each in self._compiled.values() if each.live is not None), None)
        held = whole_weights(live) if live is not None and weights else None
        write_bundle(
            directory, BundleContent(self.artifacts, self.plans, self.home, held, self.loss), force=force
        )

    def inspect(self, *, switch: Pair | None = None, scope: SwitchScope = SwitchScope.STATE) -> list[Section]:
        """Tables about strategies and switches, or about one switch, by the names of its strategies."""
        from .pages import bundle_page

        view = bundle_page.view_of_artifacts(self.artifacts, self.plans, self.links, self.home, self.loss)
        if switch is None:
            return bundle_page.overview(view)
        plan = self.plan(*switch, scope)
        return bundle_page.switch_page(plan, self.artifacts[plan.source].program.ranks, view)

    def verify(
        self,
        *,
        values: bool = False,
        rows: bool = False,
        model: ModelSource | Factory | nn.Module | None = None,
    ) -> BundleReport:
        """Prove every strategy, and every plan of a switch; VerifyError at the first misfit or wrong number.

        values: also numbers, with a switch after every step. model: to be compared with, instead of what
        was compiled.
        """
        from .models.compile_subject import source_of
        from .verify.switching.bundle import ModelChoice, verify_bundle

        given = model if model is None or isinstance(model, nn.Module) else source_of(model)
        models = {name: each.model if given is None else given for name, each in self._compiled.items()}
        examples = {name: each.examples for name, each in self._compiled.items()} if given is None else {}
        choice = ModelChoice(models, examples=examples)
        return verify_bundle(
            self.artifacts, self.plans, values=values, rows=rows, choice=choice, loss=self.loss
        )

    def plan(self, source: str, target: str, scope: SwitchScope = SwitchScope.STATE) -> SwitchPlan:
        """The plan of a switch."""
        for name in (source, target):
            if name not in self._compiled:
                raise no_strategy(name, self._compiled)
        for plan in self.plans:
            if (plan.source, plan.target, plan.scope) == (source, target, scope):
                return plan
        raise no_plan(source, target, scope, [(each.source, each.target, each.scope) for each in self.plans])


def named_entries(
    given: Mapping[str, GivenStrategy | BundleEntry] | Sequence[GivenStrategy | BundleEntry],
) -> dict[str, BundleEntry]:
    """Strategies with their names; a file without one is called as it is, without its ending."""
    if isinstance(given, (str, Path)):
        given = [given]
    pairs = list(given.items()) if isinstance(given, Mapping) else [(_name_of(each), each) for each in given]
    entries = [(name, each if isinstance(each, BundleEntry) else BundleEntry(each)) for name, each in pairs]
    if not entries:
        raise OptionError("there are no strategies to compile", fix="strategies=['a.yaml', 'b.yaml']")
    odd = [
        (name or "no name", f"of type {type(each.strategy).__name__}")
        for name, each in entries
        if not _is_one(each)
    ]
    if odd:
        raise OptionError(
            "not all strategies are strategies",
            details=odd,
            rule="a strategy is a file, a text, a dict, or a Strategy",
            fix="strategies={'small': 'small.yaml', 'large': Strategy(...)}",
        )
    check_names([name for name, _ in entries])
    return dict(entries)


def _is_one(entry: BundleEntry) -> bool:
    return isinstance(entry.strategy, (Strategy, str, Path, Mapping))


def _name_of(given: GivenStrategy | BundleEntry) -> str:
    strategy = given.strategy if isinstance(given, BundleEntry) else given
    if isinstance(strategy, Strategy):
        return strategy.name
    is_file = isinstance(strategy, (str, Path)) and "\n" not in str(strategy) and "{" not in str(strategy)
    return Path(str(strategy)).stem if is_file else ""


def compile_entries(
    model: ModelSource | Factory | nn.Module | str,
    example_inputs: Inputs | None,
    entries: Mapping[str, BundleEntry],
    switch: str | Iterable[Pair] | None,
    home: str | None,
    optimizer: OptimizerConfig,
    device: DeviceKind,
    dump: Path | None,
    capture: Capture,
    precision: Precision,
    cluster: tuple[ClusterSpec, str] | None,
) -> CompiledBundle:
    """All steps of `compile_bundle`; nothing is written but the dump. cluster: with its file."""
    pairs = wanted_pairs(switch, list(entries), home)
    jobs = {name: _job(model, example_inputs, entry, cluster) for name, entry in entries.items()}
    form = None
    if cluster is not None:
        from .cluster.written import cluster_form

        form = cluster_form(cluster[0])
    made = compile_several(jobs, optimizer, device, dump, capture, precision, form, home is not None)
    artifacts = {name: each.artifact for name, each in made.items()}
    check_alike(artifacts)
    programs = {name: artifact.program for name, artifact in artifacts.items()}
    links = links_of(None if cluster is None else cluster[0], world_of(programs.values()))
    plans = plan_several(programs, pairs, optimizer.moments, links, home)
    proved = [each.loss for each in made.values() if each.loss is not None]
    return CompiledBundle(made, plans, links, home, of_all(proved) if proved else None)


def _job(
    model: ModelSource | Factory | nn.Module | str,
    inputs: Inputs | None,
    entry: BundleEntry,
    cluster: tuple[ClusterSpec, str] | None,
) -> CompileJob:
    given = entry.strategy
    strategy = given if isinstance(given, Strategy) else read_strategy(given)
    cost = None
    if cluster is not None:
        from .cost_models.steps.figures import cost_of_ranks

        cost = cost_of_ranks(*cluster, strategy.devices)
    return CompileJob(
        strategy,
        model if entry.model is None else entry.model,
        entry.example_inputs if entry.example_inputs is not None or entry.model is not None else inputs,
        cost,
    )
