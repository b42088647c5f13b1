"""What the prices have to reach on published points, and whether they do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from truth.amp_set import TrialSet
from truth.sailor_set import PointSet
from truth.scores import error

THREE_TYPES, OPT, NEO = "three-type cluster, OPT-350", "GH200, OPT-350", "GH200, GPT-Neo-2.7"
HETEROGENEOUS = "AMP, het_cluster"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. passed: None where the data has no point for it."""

    subject: str
    text: str
    found: str
    passed: bool | None


def bars(sets: Sequence[PointSet], trials: Sequence[TrialSet]) -> list[Bar]:
    """Every bar, in a fixed order."""
    by_name = {one.name: one for one in sets}
    found: list[Bar] = []
    found += _three_types(by_name.get(THREE_TYPES))
    found += _opt(by_name.get(OPT))
    found += _neo(by_name.get(NEO))
    for name in (OPT, NEO):
        found += _memory(name, by_name.get(name))
    found += _amp(next((one for one in trials if one.name == HETEROGENEOUS), None))
    return found


def _three_types(data: PointSet | None) -> Iterator[Bar]:
    if data is None or not data.counted:
        yield Bar(THREE_TYPES, "MAPE at most 8 %", "no points", None)
        return
    found = data.time()
    yield Bar(THREE_TYPES, "MAPE at most 8 %", f"{found.mape:.1%}", found.mape <= 0.08)
    yield Bar(THREE_TYPES, "worst 16 %", f"{found.worst:+.1%}", abs(found.worst) <= 0.16)
    enough = len(data.counted) > 2
    yield Bar(
        THREE_TYPES,
        "rank correlation at least 0.92",
        f"{found.rank:.2f} of {found.points} points",
        found.rank >= 0.92 if enough else None,
    )


def _opt(data: PointSet | None) -> Iterator[Bar]:
    if data is None or not data.counted:
        yield Bar(OPT, "MAPE at most 10 %", "no points", None)
        return
    found, sailor = data.time(), data.sailor()
    yield Bar(OPT, "MAPE at most 10 %", f"{found.mape:.1%}", found.mape <= 0.10)
    same = [row for row in data.counted if row.sailor_s is not None]
    ours = sum(abs(error((row.documented.step_s, row.point.step_s))) for row in same) / max(1, len(same))
    yield Bar(
        OPT,
        "not above Sailor's formula on the same points and files",
        f"{ours:.1%} against {sailor.mape:.1%} on {len(same)} points",
        ours <= sailor.mape if same else None,
    )
    large = [row for row in data.counted if row.point.mbs >= 8 and row.point.stages <= 2]
    errors = [error((row.documented.step_s, row.point.step_s)) for row in large]
    worst = max(errors, key=abs, default=float("nan"))
    yield Bar(
        OPT,
        "micro-batch 8 or more, at most 2 stages: within 8 % each",
        f"{worst:+.1%} of {len(large)} points",
        abs(worst) <= 0.08 if large else None,
    )


def _neo(data: PointSet | None) -> Iterator[Bar]:
    if data is None or not data.counted:
        yield Bar(NEO, "MAPE at most 8 %", "no points", None)
        return
    found = data.time()
    yield Bar(NEO, "MAPE at most 8 %", f"{found.mape:.1%}", found.mape <= 0.08)


def _memory(name: str, data: PointSet | None) -> Iterator[Bar]:
    found = data.memory() if data is not None else None
    if found is None or not found.points:
        yield Bar(name, "peak memory, MAPE at most 5 %", "no points", None)
        return
    yield Bar(name, "peak memory, MAPE at most 5 %", f"{found.mape:.1%}", found.mape <= 0.05)
    yield Bar(name, "peak memory, worst 10 %", f"{found.worst:+.1%}", abs(found.worst) <= 0.10)


def _amp(data: TrialSet | None) -> Iterator[Bar]:
    if data is None or not data.score().points:
        yield Bar(HETEROGENEOUS, "rank correlation at least 0.8", "no trials", None)
        return
    found, choice, best = data.score(), data.first_choice(), data.best_s()
    yield Bar(HETEROGENEOUS, "rank correlation at least 0.8", f"{found.rank:.2f}", found.rank >= 0.8)
    yield Bar(HETEROGENEOUS, "MAPE at most 15 %", f"{found.mape:.1%}", found.mape <= 0.15)
    ran = choice.measured_s if choice is not None else None
    yield Bar(
        HETEROGENEOUS,
        "first choice runs and is within 20 % of the best",
        f"{choice.name if choice else 'none'}: {f'{ran:g} s' if ran else 'failed'}, best {best:g} s",
        ran is not None and ran <= 1.2 * best,
    )
    failed = [row for row in data.rows if row.trial.measured_s is None]
    refused, wrongly = data.refused(failed=True), data.refused(failed=False)
    yield Bar(
        HETEROGENEOUS,
        "8 of 10 failed ones refused",
        f"{len(refused)} of {len(failed)}",
        len(refused) >= 0.8 * len(failed) if failed else None,
    )
    yield Bar(HETEROGENEOUS, "none that ran refused", f"{len(wrongly)}", not wrongly)
