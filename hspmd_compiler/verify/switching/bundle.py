"""`hspmd verify` of several strategies: each as an artifact of its own, and every switch between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from ...artifact.alike import check_alike
from ...artifact.check_switch import check_switch_plan
from ...artifact.proved_loss import ProvedLoss
from ...artifact.store import Artifact
from ...base.log import task
from ...ir import graph_json
from ...models.models import ModelSource
from ...pages.units import bytes_text
from ...program.sized.instantiate import plain
from ...program.switch_plan import SwitchPlan, SwitchScope
from ..artifact import STEPS, VerifyReport, verify_artifact
from ..batches import drawn_batches
from ..reference import SEED, Reference, find_reference
from ..start import checked_start
from .bits import BitsProof, BitsReport
from .coverage import check_coverage
from .curve import CurveProof, CurveReport
from .messages import SwitchMemory, check_messages
from .parts_of_batch import PartsReport, prove_parts
from .strategies import ProvenStrategies

PlanKey = tuple[str, str, SwitchScope]
Given = ModelSource | nn.Module | None


@dataclass(frozen=True, slots=True)
class BundleReport:
    """What was proved of each strategy and of each plan. bits, curve: where values were asked for.

    parts: of steps whose optimizer state stays at home, where there are such.
    """

    strategies: Mapping[str, VerifyReport]
    plans: Sequence[SwitchPlan]
    memory: Mapping[PlanKey, SwitchMemory] = field(default_factory=dict)
    bits: Mapping[PlanKey, BitsReport] = field(default_factory=dict)
    curve: CurveReport | None = None
    parts: PartsReport | None = None

    def to_json(self) -> dict[str, object]:
        """For scripts."""
        told: dict[str, object] = {} if self.curve is None else {"curve": self.curve.to_json()}
        told |= {} if self.parts is None else {"parts": self.parts.to_json()}
        return {
            "strategies": {name: report.to_json() for name, report in self.strategies.items()},
            "switches": [self._plan_json(plan) for plan in self.plans],
            **told,
        }

    def _plan_json(self, plan: SwitchPlan) -> dict[str, object]:
        told: dict[str, object] = {
            "source": plan.source,
            "target": plan.target,
            "scope": plan.scope.value,
            "classes": len(plan.classes),
            "peak_rank": self.memory[_key(plan)].world_rank,
            "before_bytes": self.memory[_key(plan)].before_bytes,
            "peak_bytes": self.memory[_key(plan)].peak_bytes,
        }
        bits = self.bits.get(_key(plan))
        if bits is not None:
            told |= {"same_tensors": bits.tensors, "messages": bits.messages, "moved_bytes": bits.moved_bytes}
        return told

    def rendered(self) -> RenderableType:
        """For people."""
        parts: list[RenderableType] = []
        for name, report in self.strategies.items():
            parts += [Text(f"strategy {name}", style="bold"), report.rendered()]
        parts.append(self._table())
        if self.curve is not None:
            parts.append(self.curve.rendered())
        if self.parts is not None:
            parts.append(self.parts.rendered())
        return Group(*parts)

    def _table(self) -> Table:
        table = Table(title="switches: every element that a rank needs comes once, from one that has it")
        told = ("switch", "scope", "classes", "most memory of a rank", "its state before")
        columns = (*told, *(("same tensors", "messages", "bytes") if self.bits else ()))
        for name in columns:
            table.add_column(name, justify="left" if name in ("switch", "scope") else "right")
        for plan in self.plans:
            memory = self.memory[_key(plan)]
            row = [f"{plan.source}:{plan.target}", plan.scope.value, str(len(plan.classes))]
            row += [bytes_text(memory.peak_bytes), bytes_text(memory.before_bytes)]
            bits = self.bits.get(_key(plan))
            if bits is not None:
                row += [f"{bits.tensors:,}", f"{bits.messages:,}", f"{bits.moved_bytes:,}"]
            table.add_row(*row)
        return table


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """What strategies are compared with. models: by strategy; None: built again from what an artifact says.

    trust, from_file, examples: as for `verify_artifact`, examples by strategy.
    """

    models: Mapping[str, Given] = field(default_factory=dict)
    trust: bool = False
    from_file: bool = False
    examples: Mapping[str, Mapping[str, Tensor] | None] = field(default_factory=dict)


def verify_bundle(
    artifacts: Mapping[str, Artifact],
    plans: Sequence[SwitchPlan],
    *,
    values: bool = False,
    rows: bool = False,
    choice: ModelChoice | None = None,
    loss: ProvedLoss | None = None,
) -> BundleReport:
    """A VerifyError at the first misfit of a strategy or a switch, or the first wrong number.

    values: also that a switch keeps every bit, and that training with a switch after each step is that of one
    device. loss: what it was proved to be, with a home. A program for micro-batches of any size takes the
    steps between switches as it was first compiled: what it holds is the same.
    """
    chosen = choice or ModelChoice()
    check_alike(artifacts)
    reports = {}
    for name, artifact in artifacts.items():
        with task(f"verify {name}"):
            reports[name] = verify_artifact(
                artifact,
                values=values,
                rows=rows,
                model=chosen.models.get(name),
                trust_model=chosen.trust,
                from_file=chosen.from_file,
                examples=chosen.examples.get(name),
            )
    artifacts = {name: replace(each, program=plain(each.program)) for name, each in artifacts.items()}
    strategies = ProvenStrategies.of({name: each.program for name, each in artifacts.items()})
    moments = next(iter(artifacts.values())).manifest.optimizer.moments
    memory = {}
    with task("check switches", len(plans)) as progress:
        for plan in plans:
            memory[_key(plan)] = _fits(plan, strategies, moments)
            progress.advance()
    report = BundleReport(reports, plans, memory)
    return _with_values(report, artifacts, strategies, chosen, loss) if values and plans else report


def _fits(plan: SwitchPlan, strategies: ProvenStrategies, moments: tuple[str, ...]) -> SwitchMemory:
    """A plan of all ranks, without numbers."""
    before, after = strategies.placed(plan.source), strategies.placed(plan.target)
    check_switch_plan(plan, f"{plan.source}:{plan.target}", before, after)
    check_coverage(plan, before, after, moments if plan.scope is SwitchScope.STATE else ())
    return check_messages(plan, strategies.layouts(plan.source), strategies.layouts(plan.target), moments)


def _key(plan: SwitchPlan) -> PlanKey:
    return plan.source, plan.target, plan.scope


def _with_values(
    report: BundleReport,
    artifacts: Mapping[str, Artifact],
    strategies: ProvenStrategies,
    choice: ModelChoice,
    loss: ProvedLoss | None,
) -> BundleReport:
    references = {name: _reference(name, artifact, choice) for name, artifact in artifacts.items()}
    batches = {
        name: drawn_batches(
            graph_json.decode(artifact.graph),
            references[name].examples,
            STEPS,
            torch.Generator().manual_seed(SEED),
        ).steps
        for name, artifact in artifacts.items()
    }
    config = next(iter(artifacts.values())).manifest.optimizer
    state = next(iter(references.values())).state
    firsts = {name: of[0] for name, of in batches.items()}
    bits = BitsProof(strategies, state, firsts, config).prove(report.plans)
    models = [artifact.manifest.model for artifact in artifacts.values()]
    is_one = all(each == models[0] for each in models)
    curve = CurveProof(strategies, references, batches, config, is_one).prove(report.plans)
    home = next((plan.source for plan in report.plans if plan.scope is SwitchScope.PARAMS), None)
    parts = None
    if home is not None:
        draws = any(shared.draws for shared in artifacts[home].program.classes.values())
        parts = prove_parts(references[home], firsts[home], draws, loss)
    return replace(report, bits=bits, curve=curve, parts=parts)


def _reference(name: str, artifact: Artifact, choice: ModelChoice) -> Reference:
    found = find_reference(artifact, choice.models.get(name), choice.trust)
    examples = choice.examples.get(name)
    if examples is not None:
        found = replace(found, examples=examples)
    return checked_start(artifact, found)[0]
