"""Forked ranks: records come through, one failure ends all and is named."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import pytest

from hspmd_compiler.errors import HspmdError, OptionError, RunError
from hspmd_compiler.runtime.start.processes import run_ranks
from hspmd_compiler.runtime.start.rank_process import Emit, LocalRank, RankBody
from hspmd_compiler.runtime.transport import PeerLost


def run(body: RankBody, ranks: tuple[int, ...] = (0, 1, 2)) -> list[object]:
    records: list[object] = []
    run_ranks(ranks, body, records.append)
    return records


def failing(where: int, action: Callable[[], None]) -> RankBody:
    """One rank does something, the others would sleep for a minute."""

    def body(local: LocalRank, emit: Emit) -> None:
        if local.rank == where:
            action()
        else:
            time.sleep(60)

    return body


def raised(body: RankBody) -> HspmdError:
    start = time.monotonic()
    with pytest.raises(HspmdError) as caught:
        run(body)
    assert time.monotonic() - start < 8
    return caught.value


def test_records_of_all_ranks() -> None:
    def body(local: LocalRank, emit: Emit) -> None:
        for number in range(3):
            emit({"rank": local.rank, "index": local.local_index, "text": "x" * 10_000, "number": number})

    records = run(body, (4, 5))
    assert sorted((r["rank"], r["index"], r["number"]) for r in records) == [  # type: ignore[index]
        (4 + index, index, number) for index in (0, 1) for number in range(3)
    ]


def test_killed_rank_is_named() -> None:
    error = raised(failing(2, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    assert "rank 2 (pid" in error.what and "signal 9 (SIGKILL)" in error.what


def test_exception_is_named_with_its_place() -> None:
    def boom() -> None:
        raise ValueError("no such thing")

    error = raised(failing(1, boom))
    assert error.what.startswith("rank 1 (pid") and "ValueError: no such thing" in error.what
    assert "test_processes.py" in error.text()


def test_our_errors_keep_their_kind() -> None:
    def boom() -> None:
        raise OptionError("bad lr", details=[("lr", "-1")], fix="raise it")

    error = raised(failing(0, boom))
    assert isinstance(error, OptionError) and error.what == "bad lr" and error.fix == "raise it"
    assert ("lr", "-1") in error.details and error.details[-1][0] == "rank"
    assert error.details[-1][1].startswith("0 (pid")


@pytest.mark.parametrize("code", [0, 7])
def test_leaving_early_is_a_failure(code: int) -> None:
    assert f"exit code {code}" in raised(failing(1, lambda: os._exit(code))).what


def test_sys_exit_is_a_failure() -> None:
    assert "SystemExit" in raised(failing(1, sys.exit)).what


def test_cause_is_told_before_its_consequence() -> None:
    def body(local: LocalRank, emit: Emit) -> None:
        if local.rank == 1:
            time.sleep(0.5)
            raise ValueError("the cause")
        raise PeerLost("lost contact in all_reduce")

    assert "the cause" in raised(body).what


def test_consequence_alone_is_told() -> None:
    def body(local: LocalRank, emit: Emit) -> None:
        if local.rank == 1:
            raise PeerLost("lost contact in all_reduce")

    error = raised(body)
    assert isinstance(error, RunError) and error.what.startswith("lost contact")


def test_interrupt_ends_all() -> None:
    def body(local: LocalRank, emit: Emit) -> None:
        emit({"pid": os.getpid()})
        time.sleep(60)

    pids: list[int] = []

    def stop(record: object) -> None:
        pids.append(record["pid"])  # type: ignore[index]
        if len(pids) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_ranks((0, 1), body, stop)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_ranks_die_with_their_parent() -> None:
    read_end, write_end = os.pipe()
    parent = os.fork()
    if not parent:
        os.close(read_end)

        def body(local: LocalRank, emit: Emit) -> None:
            time.sleep(60)

        try:
            run_ranks((0, 1), body, lambda record: None)
        finally:
            os._exit(0)
    os.close(write_end)
    time.sleep(0.5)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    start = time.monotonic()
    assert os.read(read_end, 1) == b""  # the ranks held the other end
    assert time.monotonic() - start < 5
    os.close(read_end)
