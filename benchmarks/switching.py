"""Switches between strategies, measured: plans, and transitions of published strategies by sender rule.

    python benchmarks/switching.py [--only NAME ...] [--json OUT]
    python benchmarks/switching.py --transitions FILE --json OUT

Sections (one function each): plan (32B, HSPMD's case 12 to 13, weights and both moments), specialise (the
program of case 13 from the artifact of case 12), many (1,024 to 992 ranks), run (8 local ranks, beside a
checkpoint: `switch_run.py`). CPU seconds, the least of some repeats: other processes only add to it. A
section is missed where its time is over the limit that is set for it: exit code 1.

--transitions: every transition of a file like HSPMD's golden ones (`switch_transitions.py` says what is
read), for the six sender rules and ours: volumes in elements, and how many are over the inter-node bound.
Exit code 1 where ours are any, where the file says something else of a rule, or where a transition has no
slices.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import switch_run
from compile_overhead import homogeneous
from rich.console import Console
from rich.table import Table
from switch_transitions import Transition, by_rule, our_volumes, rule_volumes, transitions_of

from hspmd_compiler import api
from hspmd_compiler.artifact import paths, store
from hspmd_compiler.base.collection import without_collection
from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.compiler import lower_graph, trace_graph
from hspmd_compiler.ir import graph_json
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.models.compile_subject import subject_of
from hspmd_compiler.models.models import load_model
from hspmd_compiler.program.program import RankProgram
from hspmd_compiler.strategy.formats.expanded import Choices
from hspmd_compiler.strategy.formats.read import pick, read_entries
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.switching.links import links_of_nodes
from hspmd_compiler.switching.plan import plan_switch
from hspmd_compiler.switching.sender_rules import SenderRule
from hspmd_compiler.switching.totals import totals

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT.parent / "shared" / "reference" / "hspmd" / "strategies_hetero_cluster.json"
MODEL = "llama-32b"
MOMENTS = ("exp_avg", "exp_avg_sq")
NODE, RANKS, LEFT, LAYERS = 8, 1024, 992, 60
REPEATS, WIDTH = 5, 150
COLUMNS = (
    "rule",
    "across nodes",
    "over the bound",
    "most sent across",
    "most sent inside",
    "pairs",
    "as told",
)
SHOWN = ("inter_node_numel", "over_bound_numel", "max_send_inter", "max_send_intra", "num_pairs")


@dataclass(frozen=True, slots=True)
class Measured:
    """A time with its limit, if one is set, and what else there is to say."""

    what: str
    seconds: float
    limit_s: float | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_met(self) -> bool:
        return self.limit_s is None or self.seconds <= self.limit_s


def least_s(work: Callable[[], object]) -> float:
    """CPU seconds of the quickest of some runs."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        with without_collection():
            work()
        times.append(time.process_time() - start)
    return min(times)


def plan_section() -> list[Measured]:
    """HSPMD's case 12 to 13, where GPU 31 is lost; with moments on every holder, and on one (ZeRO-1)."""
    found = []
    for name, zero in (
        ("32B, case 12 -> 13, GPU 31 lost", 0),
        ("the same from ZeRO-1 to ZeRO-1, none lost", 1),
    ):
        before, after = (by_device(case(number, zero)) for number in (12, 13))
        given = {device: program for device, program in before.items() if zero or device != 31}
        found.append(planned(name, given, after, 0.1))
    return found


def specialise_section() -> list[Measured]:
    """The program of case 13 from the logical graph in the artifact of case 12."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "artifact"
        api.compile(load_model(MODEL, {}), strategy=case(12)).save(directory, weights=False)

        def graph() -> LogicalGraph:
            return graph_json.decode(store.Files(directory).json(paths.GRAPH))

        read_s = least_s(graph)
        traced, strategy = graph(), case(13)
        lower_s = least_s(lambda: lower_graph(traced, strategy, DeviceKind.CPU))
    parts = {"read_s": read_s, "lower_s": lower_s}
    return [Measured("32B, case 13 from the artifact of case 12", read_s + lower_s, 2.0, parts)]


def many_section() -> list[Measured]:
    """32B on 1,024 equal ranks, of which 32 leave: TP 8, 4 stages, 32 and 31 pipelines."""
    found = []
    for zero, limit_s in ((0, 1.0), (1, None)):
        before, after = (by_device(replace(homogeneous(n, LAYERS), zero=zero)) for n in (RANKS, LEFT))
        found.append(planned(f"{RANKS} -> {LEFT} ranks, ZeRO-{zero}", before, after, limit_s))
    return found


def run_section() -> list[Measured]:
    """Switches of 8 local ranks with 200 MB each, beside a checkpoint in the same run."""
    found = []
    for number, row in enumerate(switch_run.section()):
        for unit, clock in (("cpu_s", "CPU of all ranks"), ("wall_s", "wall")):
            checkpoint_s = row[f"save_{unit}"] + row[f"load_{unit}"]
            limit_s = switch_run.MOST_OF_CHECKPOINT * checkpoint_s if number == 0 else None
            numbers = {"moved_bytes": row["moved_bytes"], f"checkpoint_{unit}": checkpoint_s}
            found.append(Measured(f"{row['switch']}, {clock}", row[f"switch_{unit}"], limit_s, numbers))
    return found


SECTIONS: Mapping[str, Callable[[], list[Measured]]] = {
    "plan": plan_section,
    "specialise": specialise_section,
    "many": many_section,
    "run": run_section,
}


def planned(
    name: str, before: Mapping[int, RankProgram], after: Mapping[int, RankProgram], limit_s: float | None
) -> Measured:
    """The time of a plan of weights and both moments, and what it moves."""
    links = links_of_nodes([device // NODE for device in range(max((*before, *after)) + 1)])
    seconds = least_s(lambda: plan_switch(before, after, links, moments=MOMENTS))
    plan = plan_switch(before, after, links, moments=MOMENTS)
    found = totals(plan, links)
    numbers = {
        "classes": len(plan.classes),
        "local_bytes": found.local.bytes,
        "intra_node_bytes": found.intra_node.bytes,
        "inter_node_bytes": found.inter_node.bytes,
        "over_bound_bytes": found.inter_node.bytes - found.inter_node_bound_bytes,
        "messages": found.messages,
    }
    return Measured(name, seconds, limit_s, numbers)


def case(number: int, zero: int = 0) -> Strategy:
    entries = read_entries(CASES, Choices())[1]
    return replace(pick(entries, f"hspmd_hetero_cluster/case{number}").expand().strategy, zero=zero)


def by_device(strategy: Strategy) -> dict[int, RankProgram]:
    program = lower_graph(traced_model(strategy.global_batch), strategy, DeviceKind.CPU).program
    return {rank.device: rank for rank in program.ranks}


@cache
def traced_model(batch: int) -> LogicalGraph:
    subject = subject_of(load_model(MODEL, {}), None)
    return trace_graph(subject.model, subject.inputs, batch).graph


def measure(names: list[str], console: Console) -> tuple[dict[str, Any], bool]:
    found = {name: SECTIONS[name]() for name in names}
    table = Table("section", "what", "CPU s", "limit", "numbers")
    for name, rows in found.items():
        for row in rows:
            limit = "" if row.limit_s is None else f"{row.limit_s:.3g}"
            numbers = ", ".join(f"{key} {text(value)}" for key, value in row.numbers.items())
            table.add_row(name, row.what, f"{row.seconds:.3f}", limit, numbers)
    console.print(table)
    met = all(row.is_met for rows in found.values() for row in rows)
    return {name: [asdict(row) for row in rows] for name, rows in found.items()}, met


def text(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}"


def transitions(path: Path, console: Console) -> tuple[dict[str, Any], bool]:
    rows = [transition_row(each) for each in transitions_of(path)]
    for row in rows:
        table = Table(*COLUMNS, title=row["name"], title_justify="left")
        for rule, found in row["rules"].items():
            numbers = (f"{found[name]:,}" for name in SHOWN)
            table.add_row(rule, *numbers, {None: "", True: "yes", False: "NO"}[found["as_told"]])
        console.print(row["problem"] or table)
    return {"transitions": rows}, all(row["is_right"] for row in rows)


def transition_row(transition: Transition) -> dict[str, Any]:
    """All rules, ours under LEAST_LOAD. is_right: ours is on the bound, and all are as the file says."""
    rules: dict[str, dict[str, Any]] = {}
    ours = our_volumes(transition)
    bound = ours.pop("bound_numel")
    for rule in SenderRule if not transition.problem else ():
        for form in ("fused", "per_tensor") if rule is not SenderRule.LEAST_LOAD else ("",):
            key = f"{rule.name}/{form}" if form else rule.name
            chosen = by_rule(transition, rule, form == "per_tensor") if form else []
            found = rule_volumes(transition, chosen) if form else dict(ours)
            found["over_bound_numel"] = found["inter_node_numel"] - bound
            rules[key] = found | {"as_told": as_told(transition, key, found, chosen)}
    is_right = bool(rules) and rules[SenderRule.LEAST_LOAD.name]["over_bound_numel"] == 0
    return {
        "name": transition.name,
        "failed_devices": list(transition.failed),
        "inter_node_bound_numel": bound,
        "rules": rules,
        "problem": transition.problem,
        "is_right": is_right and all(found["as_told"] is not False for found in rules.values()),
    }


def as_told(
    transition: Transition, key: str, found: Mapping[str, Any], chosen: list[dict[int, int]]
) -> bool | None:
    """Whether a rule's volumes, or its choices, are those of the file; None where that has none."""
    name, _, form = key.partition("/")
    told = transition.expected.get(key, transition.expected.get(name) if form == "fused" else None)
    if told is None:
        return None
    if "sender_of" in told:
        named = [{str(needer): sender for needer, sender in own.items()} for own in chosen]
        return named == told["sender_of"] and bool(found["errors"]) is ("error" in told)
    same = all(found[each] == value for each, value in told.items() if each in found and each != "errors")
    return same and bool(found["errors"]) == bool(told.get("errors"))


def arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument(
        "--only", action="append", choices=SECTIONS, help="a section; more than once for several"
    )
    parser.add_argument("--transitions", type=Path, metavar="FILE", help="volumes of its transitions instead")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write everything to a file")
    return parser.parse_args()


def main() -> int:
    """Measure, print, and write."""
    args = arguments()
    console = Console(width=WIDTH)
    found, is_right = (
        transitions(args.transitions, console)
        if args.transitions is not None
        else measure(args.only or [*SECTIONS], console)
    )
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
