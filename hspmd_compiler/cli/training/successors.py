"""The program that an elastic run goes on with on the devices that are left, and the plan of its state."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from ...artifact.bundle import read_bundle
from ...artifact.bundle_paths import is_bundle
from ...artifact.copies_file import copies_from, copies_text
from ...artifact.manifest import describe
from ...artifact.store import Artifact, load
from ...artifact.switch_file import plan_text
from ...artifact.write import write
from ...base.devices import DeviceKind, family_of
from ...base.number_ranges import number_ranges
from ...compiler import lower_graph
from ...errors import HspmdError, RankLost
from ...ir import graph_json
from ...passes.layout_wishes import bind_layouts
from ...program.program import RankProgram
from ...program.state.state_copies import changing_buffers, copies_as_program
from ...program.switch_plan import SwitchClass, SwitchPlan
from ...runtime.elastic.choosing import Situation, Successor
from ...runtime.elastic.stale import program_of_owned
from ...runtime.optimizer import ShardOptimizer
from ...strategy.form import form_of, strategy_from
from ...strategy.smaller import smaller_strategies
from ...strategy.strategy import Strategy
from ...switching.copies import plan_copies, plan_restored
from ...switching.links import SwitchLinks, links_of_nodes
from ...switching.plan import plan_switch


@dataclass(frozen=True, slots=True)
class ReadyStrategy:
    """A strategy that is compiled. devices: by the rank of its program."""

    name: str
    folder: Path
    devices: tuple[int, ...]


@dataclass
class Successors:
    """Of an artifact or a bundle. start: of a bundle, to begin with. scratch: for programs and plans.

    survive: lost nodes for which copies are kept; each process is a node of its own.
    hosts: number of each device's host, empty where there is one.
    """

    directory: Path
    scratch: Path
    start: str | None = None
    survive: int = 0
    hosts: dict[int, int] = field(default_factory=dict)
    _read: dict[str, Artifact] = field(default_factory=dict)

    @cached_property
    def candidates(self) -> list[ReadyStrategy]:
        """The strategies that were compiled, the one to begin with first."""
        if not is_bundle(self.directory):
            artifact = self._artifact(self.directory)
            devices = tuple(own.device for own in artifact.program.ranks)
            return [ReadyStrategy(self.directory.name, self.directory, devices)]
        bundle = read_bundle(self.directory)
        found = [
            ReadyStrategy(name, folder, bundle.devices_of(name)) for name, folder in bundle.strategies.items()
        ]
        return sorted(found, key=lambda each: each.name != self.start)

    @property
    def devices(self) -> list[int]:
        """Of all strategies, ascending."""
        return sorted({device for each in self.candidates for device in each.devices})

    @property
    def device_family(self) -> str:
        """What its programs are compiled for: cpu or cuda."""
        return family_of(self._artifact(self.candidates[0].folder).manifest.device_kinds[0])

    @property
    def digest(self) -> str:
        """Of all files of what was compiled."""
        heads = [self._artifact(each.folder).manifest for each in self.candidates]
        files = [f"{path} {entry.sha256}" for head in heads for path, entry in sorted(head.files.items())]
        names = [each.name for each in self.candidates]
        return sha256(json.dumps([sorted(names), sorted(files)]).encode()).hexdigest()

    def read(self) -> None:
        """Read what all searches need, so that children have it."""
        for each in self.candidates:
            self._artifact(each.folder)

    def choose(self, situation: Situation) -> Successor:
        """A compiled strategy of devices that are there, with the most of them; else a smaller one."""
        chosen, note = self._fitting(situation) or self._smaller(situation)
        index = {device: rank for rank, device in enumerate(situation.devices)}
        members = tuple(index[device] for device in chosen.devices)
        found = Successor(str(chosen.folder), chosen.name, members, note=note)
        if self.survive:
            found = replace(found, copies=self._copies(chosen, members, len(situation.devices)))
        if not situation.program:
            return found
        plan = self._plan(situation, chosen, members)
        missing, restored = plan.orphans(), ""
        if missing and situation.copies:
            moves, rest = self._restored(situation, chosen, members)
            missing, restored = rest.classes, self._write("plan", plan_text(moves))
        written = self._write("plan", plan_text(plan))
        return replace(found, plan=written, restored=restored, missing=_missing(missing))

    def _fitting(self, situation: Situation) -> tuple[ReadyStrategy, str] | None:
        """A compiled strategy; a run begins with the first."""
        alive = set(situation.devices)
        known = [*self.candidates, *self._current(situation)]
        fitting = [each for each in known if set(each.devices) <= alive]
        if not fitting:
            return None
        most = max(len(each.devices) for each in fitting)
        best = [each for each in fitting if len(each.devices) == most]
        chosen = next((each for each in best if each.name == situation.strategy), best[0])
        if not situation.program and self.candidates[0] in fitting:
            chosen = self.candidates[0]
        return chosen, "" if chosen.name == situation.strategy else "compiled ahead"

    def _current(self, situation: Situation) -> list[ReadyStrategy]:
        """The strategy that is run, which may have been made for what was left before."""
        if not situation.program or Path(situation.program) in [each.folder for each in self.candidates]:
            return []
        folder = Path(situation.program)
        devices = tuple(own.device for own in self._artifact(folder).program.ranks)
        return [ReadyStrategy(situation.strategy, folder, devices)]

    def _plan(self, situation: Situation, chosen: ReadyStrategy, members: tuple[int, ...]) -> SwitchPlan:
        return plan_switch(
            self._held_by(situation),
            self._programs(chosen.folder, members),
            self._links(situation),
            names=(situation.strategy or "before", chosen.name),
            moments=self._moments(situation.program),
            missing_ok=True,
        )

    def _restored(
        self, situation: Situation, chosen: ReadyStrategy, members: tuple[int, ...]
    ) -> tuple[SwitchPlan, SwitchPlan]:
        """What copies give of it, and what is on no rank at all."""
        before = self._artifact(Path(situation.program)).program
        content = Path(situation.copies).read_bytes()
        copies = copies_from(content, situation.copies)
        programs = {own.rank: own for own in before.ranks}
        kept = {
            world_rank: copies_as_program(copies.shards[of], programs)
            for world_rank, of in enumerate(situation.copied_as)
            if of is not None
        }
        return plan_restored(
            self._held_by(situation),
            kept,
            self._programs(chosen.folder, members),
            self._links(situation),
            (situation.strategy or "before", chosen.name),
            self._moments(situation.program),
        )

    def _copies(self, chosen: ReadyStrategy, members: tuple[int, ...], world: int) -> str:
        """File of the copies that are kept while a strategy is run."""
        artifact = self._artifact(chosen.folder)
        links = links_of_nodes(range(world))
        programs, moments = self._programs(chosen.folder, members), self._moments(str(chosen.folder))
        return self._write(
            "copies",
            copies_text(
                plan_copies(programs, links, self.survive, moments, changing_buffers(artifact.program))
            ),
        )

    def _held_by(self, situation: Situation) -> dict[int, RankProgram]:
        before = self._artifact(Path(situation.program))
        return {
            world_rank: self._held(before, rank, world_rank in situation.stale)
            for world_rank, rank in enumerate(situation.held_as)
            if rank is not None
        }

    def _programs(self, folder: Path, members: tuple[int, ...]) -> dict[int, RankProgram]:
        """By world rank."""
        return {members[own.rank]: own for own in self._artifact(folder).program.ranks}

    def _moments(self, folder: str) -> tuple[str, ...]:
        return ShardOptimizer(self._artifact(Path(folder)).manifest.optimizer).moments

    @staticmethod
    def _held(before: Artifact, rank: int, is_stale: bool) -> RankProgram:
        own = before.rank_program(rank)
        return program_of_owned(own) if is_stale else own

    def _links(self, situation: Situation) -> SwitchLinks:
        """Few bytes go from host to host."""
        return links_of_nodes([self.hosts.get(device, 0) for device in situation.devices])

    def _write(self, kind: str, text: str) -> str:
        file = self.scratch / f"{kind}-{sha256(text.encode()).hexdigest()[:16]}.json"
        fresh = file.with_name(
            f".{file.name}.{os.getpid()}"
        )  # a search ahead may make the same at the same time
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(file)
        return str(file)

    def _smaller(self, situation: Situation) -> tuple[ReadyStrategy, str]:
        """Compile a strategy for what is left, from the logical graph of the one before."""
        source = Path(situation.program) if situation.program else self.candidates[0].folder
        artifact = self._artifact(source)
        strategy = strategy_from(artifact.strategy)
        lost = {own.device for own in artifact.program.ranks} - set(situation.devices)
        refused: list[tuple[str, str]] = []
        for smaller, note in smaller_strategies(strategy, lost):
            try:
                compiled = _compiled(artifact, smaller)
            except HspmdError as error:
                refused.append((note, error.what))
                continue
            devices = tuple(own.device for own in compiled.program.ranks)
            base = self.candidates[0]
            gone = sorted(set(base.devices) - set(situation.devices))
            name = f"{base.name} without {number_ranges(gone)}"
            folder = self.scratch / f"program-{sha256(str(form_of(smaller)).encode()).hexdigest()[:16]}"
            write(folder, compiled, force=True, links_weights=True)
            self._read[str(folder)] = compiled
            return ReadyStrategy(name, folder, devices), note
        raise RankLost(
            f"no strategy is left without device {number_ranges(sorted(lost))}",
            details=refused,
            rule="a smaller strategy keeps the pipelines that lost nothing, or stages without what they lost",
            fix="compile one for fewer devices beside it: --strategy A.yaml --strategy SMALLER.yaml",
        )

    def _artifact(self, folder: Path) -> Artifact:
        if str(folder) not in self._read:
            self._read[str(folder)] = load(folder)
        return self._read[str(folder)]


def _compiled(artifact: Artifact, strategy: Strategy) -> Artifact:
    """The graph that an artifact carries, for another strategy."""
    graph = bind_layouts(graph_json.decode(artifact.graph), strategy)
    kind = DeviceKind(family_of(artifact.manifest.device_kinds[0]))
    lowered = lower_graph(graph, strategy, kind)
    form = form_of(strategy)
    manifest = describe(
        artifact.manifest.model,
        artifact.graph,
        artifact.manifest.optimizer,
        lowered.program,
        form,
        artifact.manifest.precision,
    )
    layouts = lowered.layouts.to_json()
    return Artifact(
        manifest, lowered.program, form, artifact.init, artifact.graph, layouts, weights=artifact.weights
    )


def _missing(classes: tuple[SwitchClass, ...]) -> tuple[tuple[str, str], ...]:
    return tuple(dict(_pieces(classes)).items())


def _pieces(classes: tuple[SwitchClass, ...]) -> Iterator[tuple[str, str]]:
    """Parameters of which nobody has a piece, and what of them."""
    for each in classes:
        kinds = ", ".join(each.kinds)
        for part in each.parts:
            yield part.name, f"{kinds}: a piece that only lost ranks had"
