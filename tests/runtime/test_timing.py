"""When instructions run: the measured timeline, the pace, the clocks of all ranks."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.base.pace import Pace, check_pace, read_pace, write_pace
from hspmd_compiler.base.timeline import Span, SpanKind
from hspmd_compiler.base.trace_file import read_timeline
from hspmd_compiler.errors import OptionError
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.program import Op
from hspmd_compiler.program.requests import LossReduce
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.runtime.start.rendezvous import Timeouts
from hspmd_compiler.runtime.timing import clocks, step_timer
from hspmd_compiler.runtime.timing.clocks import clock_offset, offset_of
from hspmd_compiler.runtime.timing.measured import MEASURED, RankRecord, Stretch, merged
from hspmd_compiler.runtime.timing.step_timer import StepTimer
from hspmd_compiler.runtime.timing.tracing import TimedSteps, timing_of

from . import hand_made

ADAMW = OptimizerConfig(lr=0.05, weight_decay=0.1, max_grad_norm=0.7)
QUICK = StartOptions(seed=3, timeouts=Timeouts(timedelta(seconds=20), timedelta(seconds=20)))
STEPS = 4
SLOW_S = 0.15
TRACED = [
    SpanKind.FORWARD,
    SpanKind.BACKWARD,
    SpanKind.SEND,
    SpanKind.RECV,
    SpanKind.GRADIENT,
    SpanKind.LOSS,
    SpanKind.UPDATE,
]


def losses(directory: Path, pace: Pace, trace: Path | None, traced: int = 1) -> list[float]:
    """The losses of a run, timed as `hspmd run` would."""

    def job(engine: Engine, emit: Emit) -> None:
        timing = timing_of(engine, pace, trace, STEPS, traced)
        for step in range(STEPS):
            emit({"loss": engine.step(hand_made.batch(step))})
            timing.step_done()
        timing.write()

    records: list[float] = []
    launch(directory, job, QUICK, on_record=lambda record: records.append(float(str(record["loss"]))))
    return records


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hand_made.save(tmp_path_factory.mktemp("timing") / "artifact", ADAMW)


def test_a_traced_run_has_its_numbers_and_its_spans_in_order(artifact: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    assert losses(artifact, Pace({}), trace, traced=2) == losses(artifact, Pace({}), None)
    timeline = read_timeline(trace, MEASURED)
    program = hand_made.program()
    assert timeline.ranks == (0, 1, 2)
    assert {span.kind for span in timeline.spans} >= {*TRACED}
    assert timeline.labels[2].startswith("rank 2: pipeline 0 stage 1 tp 0, ")
    for rank, mine in enumerate(program.ranks):
        spans = timeline.of(rank)
        assert [span.position for span in spans] == sorted(span.position for span in spans)
        assert {span.position for span in spans} <= set(range(len(mine.instructions)))
        assert all(one.end_s <= two.start_s for one, two in pairwise(spans))
        for span in spans:
            op = mine.instructions[span.position].op
            assert span.kind in (SpanKind.WAIT, *KINDS_OF[op]), (op, span.kind)
        points = [point for point in timeline.memory if point.rank == rank]
        assert len(points) == len(mine.instructions) and all(point.bytes > 1 << 20 for point in points)
    assert min(span.start_s for span in timeline.spans) >= 0


KINDS_OF: Mapping[Op, tuple[SpanKind, ...]] = {
    Op.FORWARD: (SpanKind.FORWARD,),
    Op.BACKWARD: (SpanKind.BACKWARD,),
    Op.SEND: (SpanKind.SEND,),
    Op.RECV: (SpanKind.RECV,),
    Op.GRAD_SYNC: (SpanKind.GRADIENT,),
    Op.LOSS: (SpanKind.LOSS,),
    Op.OPTIMIZER: (SpanKind.UPDATE,),
}


@pytest.mark.parametrize(
    ("stretches", "met_at"),
    [((5.0,), (1.0, 4.0, 7.0)), ((2.0, 3.0, 1.0), (2.0, 7.0, 8.0)), ((2.0, 1.5), (2.0, 5.0, 5.5))],
)
def test_a_slow_rank_is_late_where_it_meets_others(
    stretches: tuple[float, ...], met_at: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes a second, exchanges, one more behind a wait of two, exchanges, and has nothing left."""
    clock = [0.0]

    def passes(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(step_timer, "sleep", passes)
    timer = StepTimer(torch.device("cpu"), {0: stretches}, clock=lambda: clock[0])
    timer.begins()
    found = []
    for waits_s in (2.0, 0.0):
        passes(1.0)
        request = LossReduce(torch.zeros(()))
        timer.exchanges(request, lambda seconds=waits_s: (found.append(clock[0]), passes(seconds)))
    timer.exchanges(None, lambda: None)
    timer.finished(0)
    assert (*found, clock[0]) == met_at


def test_a_receiver_waits_for_a_paced_sender(artifact: Path, tmp_path: Path) -> None:
    program = hand_made.program()
    forward = next(at for at, each in enumerate(program.ranks[0].instructions) if each.op is Op.FORWARD)
    trace = tmp_path / "trace.json"
    assert losses(artifact, Pace({0: {forward: (SLOW_S,)}}), trace) == losses(artifact, Pace({}), None)
    timeline = read_timeline(trace, MEASURED)
    (slow,) = (each for each in timeline.of(0) if each.position == forward)
    assert SLOW_S <= slow.length_s < SLOW_S + 0.1
    waits = [each for each in timeline.waits(2) if each.end_s - each.start_s > SLOW_S / 2]
    assert [program.ranks[2].instructions[each.position].op for each in waits] == [Op.RECV]
    assert waits[0].end_s >= slow.end_s  # it waits for the message, and not for what moves it
    received = [each for each in timeline.of(2) if each.kind is SpanKind.RECV]
    assert all(each.length_s < SLOW_S / 2 for each in received)


def test_ranks_of_other_machines_find_the_clock_of_rank_0(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = 1000.0

    def job(engine: Engine, emit: Emit) -> None:
        rank = engine.rank
        monkeypatch.setattr(clocks, "_machine", lambda: str(rank))
        now = clocks.perf_counter
        monkeypatch.setattr(clocks, "perf_counter", lambda: now() + ahead * rank)
        own = clock_offset(engine.transport)
        emit({"offsets": engine.transport.gather_objects(own)})

    records: list[Mapping[str, object]] = []
    launch(artifact, job, QUICK, on_record=records.append)
    offsets = records[0]["offsets"]
    assert isinstance(offsets, list)
    assert offsets == pytest.approx([0.0, -ahead, -2 * ahead], abs=0.05)


@given(
    st.floats(-1e3, 1e3), st.lists(st.tuples(st.floats(0, 1e-2), st.floats(0, 1e-2)), min_size=1, max_size=8)
)
def test_the_offset_of_a_clock_is_found_to_half_of_the_quickest_answer(
    offset: float, ways: list[tuple[float, float]]
) -> None:
    rounds = [
        (10.0 * i, 10.0 * i + there + offset, 10.0 * i + there + back) for i, (there, back) in enumerate(ways)
    ]
    quickest = min(there + back for there, back in ways)
    assert abs(offset_of(rounds) - offset) <= quickest / 2 + 1e-9


def span(rank: int, start_s: float, end_s: float, kind: SpanKind, position: int) -> Span:
    return Span(rank, start_s, end_s, kind, position=position)


def test_waiting_ends_when_the_last_one_comes() -> None:
    meeting = ("step", 7, (0, 1), 0)
    records = [
        RankRecord(
            5.0,
            (
                Stretch(span(0, 5.0, 6.0, SpanKind.FORWARD, 0)),
                Stretch(span(0, 6.0, 9.0, SpanKind.COLLECTIVE, 0), meeting),
                Stretch(span(0, 9.0, 9.5, SpanKind.FORWARD, 0)),
            ),
            (),
            "a",
        ),
        RankRecord(
            5.5,
            (
                Stretch(span(1, 5.5, 8.0, SpanKind.FORWARD, 0)),
                Stretch(span(1, 8.0, 9.25, SpanKind.COLLECTIVE, 0), meeting),
                Stretch(span(1, 9.25, 9.75, SpanKind.UPDATE, 1), ("left",), waits=True),
            ),
            (),
            "b",
        ),
    ]
    found = [(each.rank, each.start_s, each.end_s, each.kind.value) for each in merged(records).spans]
    assert found == [
        (0, 0.0, 1.0, "forward"),
        (0, 1.0, 3.0, "wait"),
        (0, 3.0, 4.0, "collective"),
        (0, 4.0, 4.5, "forward"),
        (1, 0.5, 3.0, "forward"),
        (1, 3.0, 4.25, "collective"),
        (1, 4.25, 4.75, "wait"),
    ]


def test_a_sum_beside_begins_when_the_last_one_has_started_it() -> None:
    """What is left of it, when nothing more is to be computed, is waited for."""
    key = ("bucket", 3, (0, 1), 0)
    starts, ends = (0.5, 1.0), (2.5, 2.75)
    records = [
        RankRecord(
            0.0,
            (
                Stretch(span(rank, starts[rank], 2.0, SpanKind.BACKWARD, 0)),
                Stretch(span(rank, starts[rank], ends[rank], SpanKind.GRADIENT, 1), key, beside=True),
                Stretch(span(rank, 2.0, ends[rank], SpanKind.GRADIENT, 2), key),
            ),
            (),
            "",
        )
        for rank in (0, 1)
    ]
    line = merged(records)
    assert [(each.rank, each.start_s, each.end_s) for each in line.beside] == [(0, 1, 2.5), (1, 1, 2.75)]
    assert [each.length_s for each in line.spans if each.kind is SpanKind.GRADIENT] == [0.5, 0.75]
    assert line.hidden == pytest.approx(2 / 3.25) and not line.waits(0)


def test_a_receiver_waits_until_the_sender_begins_and_a_sender_for_nobody() -> None:
    message = ("transfer", 3)
    records = [
        RankRecord(0.0, (Stretch(span(0, 2.0, 2.5, SpanKind.SEND, 4), message, sends=True),), (), ""),
        RankRecord(0.0, (Stretch(span(1, 0.0, 3.0, SpanKind.RECV, 1), message),), (), ""),
    ]
    found = [(each.rank, each.start_s, each.end_s, each.kind.value) for each in merged(records).spans]
    assert found == [(0, 2.0, 2.5, "send"), (1, 0.0, 2.0, "wait"), (1, 2.0, 3.0, "recv")]


@pytest.mark.parametrize(
    ("steps", "count", "timed"),
    [(None, 2, [2, 3]), (10, 1, [2]), (3, 2, [1, 2]), (1, 3, [0]), (2, 1, [1])],
)
def test_steps_after_the_warm_up_are_timed_or_the_last_ones(
    steps: int | None, count: int, timed: list[int]
) -> None:
    found = TimedSteps.of_run(steps, count)
    assert [step for step in range(steps or 20) if found.holds(step)] == timed


SECONDS = st.integers(0, 10**9).map(lambda n: n / 1e9)
PACES = st.dictionaries(
    st.integers(0, 99),
    st.dictionaries(st.integers(0, 9999), st.lists(SECONDS, min_size=1, max_size=4).map(tuple)),
)


@given(PACES)
def test_a_pace_reads_back(least_s: dict[int, dict[int, tuple[float, ...]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pace.json"
        write_pace(Pace(least_s), path)
        assert read_pace(path) == Pace(least_s)


def test_all_that_is_wrong_with_a_pace_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pace.json"
    ranks = {"0": {"1": -1.0, "x": 0.1, "3": [0.1, 1e9]}, "01": {}, "2": {"4": 0.5, "5": [0.1, 0]}}
    path.write_text(json.dumps({"ranks": ranks}))
    with pytest.raises(OptionError) as caught:
        read_pace(path)
    assert [name for name, _ in caught.value.details] == ["ranks.0.1", "ranks.0.3", "ranks.0.x", "ranks.01"]
    entries = {"1": "soon", "2": [], "3": [0.1, "x"]}
    path.write_text(json.dumps({"version": 2, "ranks": {"0": entries, "1": [1]}, "more": 1}))
    with pytest.raises(OptionError) as caught:
        read_pace(path)
    wrong = ["more", "ranks.0.1", "ranks.0.2", "ranks.0.3", "ranks.1", "version"]
    assert sorted(name for name, _ in caught.value.details) == wrong


@pytest.mark.parametrize("text", ["", "[", "[]", "{}", '{"ranks": {"0": {"1": NaN}}}', "\x80"])
def test_what_is_no_pace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pace.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(OptionError):
        read_pace(path)
    with pytest.raises(OptionError, match="can't read the pace"):
        read_pace(tmp_path / "none.json")


def test_a_pace_of_another_program_is_refused() -> None:
    with pytest.raises(OptionError) as caught:
        check_pace(
            Pace({0: {5: (0.1,), 6: (0.1, 0.2)}, 3: {}, 2: {99: (0.1,)}}),
            world_size=3,
            rank=0,
            instructions=6,
        )
    assert [name for name, _ in caught.value.details] == ["ranks.0.6", "ranks.3"]
    check_pace(Pace({0: {5: (0.1,)}}), world_size=1, rank=0, instructions=6)
