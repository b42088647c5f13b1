"""Transitions of a file as slices: who holds and who needs each, after HSPMD's rules; volumes by sender rule.

A file is like HSPMD's golden ones: a list, or `transitions`, of entries with `slices` (numel, owners,
needers), or with a `name` that ends in "(case12->case13 ...)": cases of the strategy files beside it. Of
these the slices are cut here: every weight is split by dim 0 into as many rows as the least common multiple
of all its tensor-parallel degrees, a norm is one slice. A name may say "case4 device ids >=24 shifted by +8".
Without `failed_devices` none is lost. `stats` and `result`, where an entry has them, are compared with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm
from pathlib import Path
from typing import Any

from hspmd_compiler.program.switch_plan import Move
from hspmd_compiler.strategy.formats.expanded import Choices
from hspmd_compiler.strategy.formats.read import pick, read_entries
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.switching.demand import SwitchDemand
from hspmd_compiler.switching.least_load import least_load
from hspmd_compiler.switching.links import links_of_nodes
from hspmd_compiler.switching.sender_rules import SenderRule, SliceSenders
from hspmd_compiler.switching.totals import totals_of

NODE_SIZE = 8
CASES = re.compile(r"case(\d+)\s*->\s*case(\d+)")
SHIFTED = re.compile(r"case(\d+) device ids >=\s*(\d+) shifted by \+(\d+)")
Shift = tuple[int, int]
"""Devices from the first on have numbers that are larger by the second."""
Groups = Sequence[tuple[int, ...]]
"""Devices that hold a parameter, one group for each pipeline: a group's devices share its rows in order."""


@dataclass(frozen=True, slots=True)
class HeldSlice:
    """Elements of a parameter that go together."""

    parameter: str
    elements: int
    holders: tuple[int, ...]
    needers: tuple[int, ...]

    @property
    def is_lost(self) -> bool:
        """Whether somebody lacks it and nobody has it."""
        return not self.holders and bool(self.needers)


@dataclass(frozen=True, slots=True)
class Transition:
    """expected: what its file says of rules, by `RULE` or `RULE/fused`. problem: why there are no slices."""

    name: str
    node_size: int
    slices: tuple[HeldSlice, ...]
    failed: tuple[int, ...] = ()
    expected: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problem: str = ""

    @property
    def nodes(self) -> list[int]:
        ranks = [rank for each in self.slices for rank in (*each.holders, *each.needers)]
        return [rank // self.node_size for rank in range(max(ranks, default=-1) + 1)]


def transitions_of(path: Path) -> Iterator[Transition]:
    """Every entry of a file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    size = content.get("node_size", NODE_SIZE) if isinstance(content, dict) else NODE_SIZE
    strategies = KnownCases(path.parent)
    for entry in content["transitions"] if isinstance(content, dict) else content:
        yield _transition(entry, entry.get("node_size", size), strategies)


def _transition(entry: Mapping[str, Any], node_size: int, strategies: KnownCases) -> Transition:
    failed = tuple(entry.get("failed_devices", entry.get("failed", ())))
    expected = entry.get("stats", entry.get("result", {}))
    problem, slices = "", ()
    try:
        slices = tuple(_slices(entry, strategies))
    except LookupError as error:
        problem = str(error.args[0])
    alive = tuple(
        HeldSlice(
            each.parameter, each.elements, tuple(h for h in each.holders if h not in failed), each.needers
        )
        for each in slices
    )
    return Transition(entry["name"], node_size, alive, failed, expected, problem)


def _slices(entry: Mapping[str, Any], strategies: KnownCases) -> Iterator[HeldSlice]:
    if "slices" in entry:
        for number, each in enumerate(entry["slices"]):
            name = each.get("param", str(number))
            yield HeldSlice(name, each["numel"], tuple(each["owners"]), tuple(each["needers"]))
        return
    cases = cases_of(entry["name"])
    if not cases:
        raise LookupError("its name has no (caseA->caseB), and it has no slices")
    before, after = (strategies.groups(*case) for case in cases)
    yield from cut(strategies.model(cases[0][0]), before, after)


def cases_of(name: str) -> list[tuple[str, Shift]]:
    """The case before and the one after, each with the shift of its devices."""
    pairs = CASES.findall(name.rpartition("(")[2]) or CASES.findall(name)
    shifts = {case: (int(first), int(by)) for case, first, by in SHIFTED.findall(name)}
    return [(case, shifts.get(case, (0, 0))) for case in (pairs[-1] if pairs else ())]


def shifted(device: int, shift: Shift) -> int:
    return device + shift[1] if device >= shift[0] else device


class KnownCases:
    """HSPMD's numbered cases in the strategy files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: dict[str, tuple[Path, dict[str, Any]]] = {}
        for file in sorted(folder.glob("strategies_*.json")):
            content = json.loads(file.read_text(encoding="utf-8"))
            listed = content.get("strategies", ()) if isinstance(content, dict) else content
            for each in listed:
                number = each.get("source", {}).get("case") if isinstance(each, dict) else None
                if number is not None and "hetero_cluster" in str(each["source"].get("path")):
                    self._found.setdefault(str(number), (file, each))

    def _entry(self, case: str) -> tuple[Path, dict[str, Any]]:
        if case not in self._found:
            raise LookupError(f"no strategy file beside it has case {case}")
        return self._found[case]

    def model(self, case: str) -> Mapping[str, int]:
        model: Mapping[str, int] = self._entry(case)[1]["model"]
        return model

    def strategy(self, case: str) -> Strategy:
        file, each = self._entry(case)
        return pick(read_entries(file, Choices())[1], each["id"]).expand().strategy

    def groups(self, case: str, shift: Shift) -> list[Groups]:
        """The holders of each layer."""
        strategy = self.strategy(case)
        return [
            [tuple(shifted(device, shift) for device in own) for own in holders_of(strategy, layer)]
            for layer in range(strategy.num_layers)
        ]


def holders_of(strategy: Strategy, layer: int) -> Groups:
    stages = (stage for pipeline in strategy.pipelines for stage in pipeline.stages)
    return [stage.devices for stage in stages if stage.layers[0] <= layer < stage.layers[1]]


def cut(model: Mapping[str, int], before: Sequence[Groups], after: Sequence[Groups]) -> Iterator[HeldSlice]:
    """All weights in HSPMD's order, each in slices."""
    for name, rows, columns, layer in weights(model):
        given, wanted = before[layer], after[layer]
        if not columns:
            yield HeldSlice(
                name, rows, tuple(d for own in given for d in own), tuple(d for own in wanted for d in own)
            )
            continue
        count = lcm(*(len(own) for own in (*given, *wanted)))
        for index in range(count):
            parts = [tuple(own[index * len(own) // count] for own in side) for side in (given, wanted)]
            yield HeldSlice(name, rows // count * columns, *parts)


def weights(model: Mapping[str, int]) -> Iterator[tuple[str, int, int, int]]:
    """Name, rows, columns (0: a norm) and layer of each."""
    hidden, inner, vocab, last = model["hidden"], model["ffn_hidden"], model["vocab"], model["layers"] - 1
    yield "wte", vocab, hidden, 0
    for layer in range(model["layers"]):
        yield f"block{layer}.rmsnorm1", hidden, 0, layer
        yield f"block{layer}.qkv", 3 * hidden, hidden, layer
        yield f"block{layer}.dense", hidden, hidden, layer
        yield f"block{layer}.rmsnorm2", hidden, 0, layer
        yield f"block{layer}.h_to_4h", 2 * inner, hidden, layer
        yield f"block{layer}.4h_to_h", inner, hidden, layer
    yield "rmsnorm_final", hidden, 0, last
    yield "lm_head", vocab, hidden, last


def by_rule(transition: Transition, rule: SenderRule, per_tensor: bool = False) -> list[dict[int, int]]:
    """The sender for each needer, by slice; none of a lost slice. per_tensor: counts start anew with each."""
    senders, last = SliceSenders(rule, transition.nodes), ""
    found = []
    for each in transition.slices:
        if per_tensor and each.parameter != last:
            senders, last = SliceSenders(rule, transition.nodes), each.parameter
        found.append({} if each.is_lost else senders.choose(each.elements, each.holders, each.needers))
    return found


def rule_volumes(transition: Transition, chosen: Sequence[Mapping[int, int]]) -> dict[str, Any]:
    """Elements, as HSPMD's statistics count them."""
    planned = [
        (each, tuple(Move(sender, needer, 0, each.elements) for needer, sender in senders.items()))
        for each, senders in zip(transition.slices, chosen, strict=True)
    ]
    return _volumes(transition, planned)


def our_volumes(transition: Transition) -> dict[str, Any]:
    """The same of the least load, with the bound."""
    demands = [
        SwitchDemand(each.elements, 1, tuple(sorted(each.holders)), tuple(sorted(each.needers)))
        for each in joined(transition.slices)
    ]
    links = links_of_nodes(transition.nodes, shares_nic=False)
    planned = list(zip(demands, least_load(demands, links), strict=True))
    found = totals_of(planned, links)
    volumes = _volumes(transition, planned)
    return volumes | {"bound_numel": found.inter_node_bound_bytes}


def joined(slices: Sequence[HeldSlice]) -> list[HeldSlice]:
    """Slices with the same holders and needers as one."""
    sizes: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for each in slices:
        key = (tuple(sorted(each.holders)), tuple(sorted(each.needers)))
        sizes[key] = sizes.get(key, 0) + each.elements
    return [HeldSlice("", size, *key) for key, size in sizes.items()]


def _volumes(
    transition: Transition, planned: Sequence[tuple[HeldSlice | SwitchDemand, Sequence[Move]]]
) -> dict[str, Any]:
    nodes = transition.nodes
    senders: dict[str, dict[str, int]] = {}
    received: dict[int, int] = {}
    pairs: set[tuple[int, int]] = set()
    reused = 0
    for each, moves in planned:
        reused += each.elements * sum(needer in each.holders for needer in each.needers)
        for move in moves:
            size = move.high - move.low
            way = "intra" if nodes[move.source] == nodes[move.target] else "inter"
            senders.setdefault(str(move.source), {"intra": 0, "inter": 0})[way] += size
            received[move.target] = received.get(move.target, 0) + size
            pairs.add((move.source, move.target))
    sums = {way: sum(each[way] for each in senders.values()) for way in ("intra", "inter")}
    return {
        "moved_numel": sums["intra"] + sums["inter"],
        "local_reuse_numel": reused,
        "inter_node_numel": sums["inter"],
        "intra_node_numel": sums["intra"],
        "max_send_intra": max((each["intra"] for each in senders.values()), default=0),
        "max_send_inter": max((each["inter"] for each in senders.values()), default=0),
        "max_recv_total": max(received.values(), default=0),
        "num_pairs": len(pairs),
        "per_sender": senders,
        "errors": [each.parameter for each in transition.slices if each.is_lost],
    }
