"""Before the first step: every rank says where it is and what it runs, and all hear the same verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from hashlib import sha256
from time import monotonic
from typing import Protocol

from ...base.by_key import by_key
from ...base.comm_plan import CommKind
from ...errors import RankLost, RunError
from ...program.exchange_plan import ExchangePlan, Shortcut, shortcut_of_equals
from ...program.program import Op, RankProgram
from ...program.sized.comm_numbers import told_apart
from ..transport import peer_lost_in
from .same_start import unlike

REPORT, VERDICT, HEARD = "hspmd/report/{}", "hspmd/verdict", "hspmd/heard/{}"
HEARING_SECONDS = 5.0

Mismatch = tuple[str, str]


class Store(Protocol):
    """What the roll call needs of torch's key-value store."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def wait(self, keys: list[str], timeout: timedelta) -> None: ...


@dataclass(frozen=True, slots=True)
class Report:
    """What one rank tells. problem: why its device won't do, if so. same: what all must have alike.

    shortcuts: for each exchange, by `exchange_key`, the collective that this rank's part allows. sends and
    receives: for each peer a digest of the order of transfers, where the device depends on it.
    """

    rank: int
    host: str
    local_index: int
    device: str
    problem: str
    same: Mapping[str, str]
    shortcuts: Mapping[str, str]
    sends: Mapping[str, str]
    receives: Mapping[str, str]

    @property
    def place(self) -> str:
        return f"{self.host}, local {self.local_index}, {self.device}"


@dataclass(frozen=True, slots=True)
class Roll:
    """The verdict: where each rank is, and the keys of exchanges that all members do by a shortcut."""

    places: tuple[str, ...]
    shortcuts: frozenset[str]

    def shortcuts_of(self, strategy: str) -> frozenset[int]:
        """The exchanges of one strategy."""
        keys = (key.rpartition("/") for key in self.shortcuts)
        return frozenset(int(number) for name, _, number in keys if name == strategy)


def call_roll(store: Store, report: Report, world_size: int, wait: timedelta) -> Roll:
    """Tell the others, hear the verdict of rank 0; RunError with every problem of every rank."""
    reports: list[Report] = []
    with peer_lost_in("the roll call"):
        store.set(REPORT.format(report.rank), json.dumps(asdict(report)))
        if report.rank == 0:
            reports, missing = _await_reports(store, world_size, wait)
            problems = find_problems(reports)
            agreed = sorted(agreed_shortcuts(reports))
            places = [each.place for each in reports]
            store.set(
                VERDICT,
                json.dumps({"problems": problems, "missing": missing, "places": places, "shortcuts": agreed}),
            )
        store.wait([VERDICT], wait + wait)
        verdict = json.loads(store.get(VERDICT))
        store.set(HEARD.format(report.rank), "")
    if report.rank == 0 and (verdict["problems"] or verdict["missing"]):
        _await_hearing(store, [each.rank for each in reports])
    _raise_problems(verdict["missing"], verdict["problems"])
    return Roll(tuple(verdict["places"]), frozenset(verdict["shortcuts"]))


def _raise_problems(missing: Sequence[Mismatch], problems: Sequence[Mismatch]) -> None:
    """RunError for what the user can mend, RankLost where ranks have only not come."""
    details = [(name, text) for name, text in [*missing, *problems]]
    if problems:
        raise RunError(
            "the ranks can't run this program together",
            details=details,
            rule="each rank has the device its program was compiled for; artifact and flags are the same",
        )
    if missing:
        raise RankLost(
            "not all ranks have come to the roll call",
            details=details,
            rule="every rank of a program runs, each once",
            fix="look on its host whether its process was started, has died or is stopped;"
            " --start-timeout waits longer",
        )


def find_problems(reports: Sequence[Report]) -> list[Mismatch]:
    """Everything that keeps these ranks from running together, as (rank or what differs, text)."""
    problems = [(f"rank {each.rank}", f"{each.problem} ({each.place})") for each in reports if each.problem]
    problems += unlike({each.rank: each.same for each in reports})
    by_rank = {each.rank: each for each in reports}
    for each in reports:
        for peer, order in each.sends.items():
            other = by_rank.get(int(peer))
            if other is not None and other.receives.get(str(each.rank)) != order:
                problems.append((f"rank {each.rank}", f"sends in another order than rank {peer} receives"))
    return problems


def agreed_shortcuts(reports: Sequence[Report]) -> set[str]:
    """Exchanges for which every rank that has them allows the same shortcut."""
    found: dict[str, set[str]] = {}
    for each in reports:
        for key, shortcut in each.shortcuts.items():
            found.setdefault(key, set()).add(shortcut)
    return {key for key, kinds in found.items() if len(kinds) == 1 and Shortcut.NONE.value not in kinds}


def exchange_key(strategy: str, number: int) -> str:
    """An exchange of a strategy by its id."""
    return f"{strategy}/{number}" if strategy else str(number)


def shortcuts_of(program: RankProgram, strategy: str = "") -> dict[str, str]:
    """The shortcut that this rank's part of each exchange allows; none where its parts differ.

    Where sizes change, whatever they are: whether pieces are equal is seen in each step, alike by all.
    """
    found: dict[str, str] = {}
    overlays = program.sized.comms if program.sized is not None else [()] * len(program.comms)
    for step, overlay in zip(program.comms, overlays, strict=True):
        if step.kind in (CommKind.ALL_REDUCE, CommKind.SEND_RECV) or len(step.group) == 1:
            continue
        varies = shortcut_of_equals(told_apart(step, overlay)) if overlay else ExchangePlan.of(step).shortcut
        own = varies.value
        key = exchange_key(strategy, step.id)
        known = found.setdefault(key, own)
        found[key] = own if own == known else Shortcut.NONE.value
    return found


def transfer_orders(programs: Mapping[str, tuple[RankProgram, Sequence[int]]], op: Op) -> dict[str, str]:
    """`transfer_order` of all strategies together, by world rank. programs: each with that of its ranks."""
    found: dict[str, list[str]] = {}
    for name, (program, world_ranks) in programs.items():
        for peer, order in transfer_order(program, op).items():
            found.setdefault(str(world_ranks[int(peer)]), []).append(f"{name} {order}".strip())
    return {peer: ", ".join(orders) for peer, orders in found.items()}


def transfer_order(program: RankProgram, op: Op) -> dict[str, str]:
    """For each peer a digest of the order in which this rank sends to it, or receives from it."""
    steps = [(item.tag, program.transfers[item.slot]) for item in program.instructions if item.op is op]
    tags = by_key(
        (piece.peer, tag) for tag, step in steps for piece in (step.sends if op is Op.SEND else step.recvs)
    )
    return {str(peer): sha256(repr(order).encode()).hexdigest()[:16] for peer, order in tags.items()}


def _await_hearing(store: Store, ranks: Sequence[int]) -> None:
    """Let the others hear of a problem before the store ends with rank 0."""
    with suppress(RuntimeError):
        store.wait([HEARD.format(rank) for rank in ranks], timedelta(seconds=HEARING_SECONDS))


def _await_reports(store: Store, world_size: int, wait: timedelta) -> tuple[list[Report], list[Mismatch]]:
    """The reports that came in time, and a problem for each that didn't."""
    reports, missing = [], []
    deadline = monotonic() + wait.total_seconds()
    for rank in range(world_size):
        key = REPORT.format(rank)
        left = max(deadline - monotonic(), 0.001)
        try:
            store.wait([key], timedelta(seconds=left))
        except RuntimeError:
            missing.append((f"rank {rank}", f"did not start within {wait.total_seconds():.0f} s"))
            continue
        reports.append(Report(**json.loads(store.get(key))))
    return reports, missing
