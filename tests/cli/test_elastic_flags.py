"""Mistakes in the flags of elastic runs, all told at once; and how a change of the ranks is told."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from types import SimpleNamespace

import pytest

from hspmd_compiler.cli.training.elastic_flags import add_flags, check
from hspmd_compiler.cli.training.job import begin
from hspmd_compiler.cli.training.training_view import RecordText


def parsed(*flags: str, **others: object) -> Namespace:
    parser = ArgumentParser()
    add_flags(parser)
    return Namespace(
        **{
            "ranks": None,
            "trace": None,
            "pace": None,
            "switch_at": {},
            "replay": None,
            **others,
            **vars(parser.parse_args(flags)),
        }
    )


def test_flags_that_go_together() -> None:
    assert not check(parsed())
    assert not check(parsed("--elastic", "--elastic-respawn", "3", "--elastic-silence", "2"))


def test_all_mistakes_are_told() -> None:
    bad = check(
        parsed(
            "--elastic", "--elastic-respawn", "-1", "--elastic-silence", "0.1", ranks=[1], switch_at={3: "B"}
        )
    )
    assert [flag for flag, _ in bad] == ["--switch-at", "--elastic-respawn", "--elastic-silence", "--ranks"]
    assert check(parsed("--elastic-respawn", "1")) == [("--elastic-respawn", "goes with --elastic only")]
    assert check(parsed("--survive", "1")) == [("--survive", "goes with --elastic only")]
    assert check(parsed("--elastic", "--survive", "-1")) == [("--survive", "-1: a whole number of 0 or more")]


def test_no_list_of_places_is_told_where_none_stay() -> None:
    told: list[object] = []
    for places in ((), ("here",)):
        begin(SimpleNamespace(places=places), None, told.append, Namespace(resume=None))  # type: ignore[arg-type]
    assert told == [{"ranks": ["here"]}]


def test_what_copies_make_up_for_is_told() -> None:
    copies = {"wanted": 2, "survived": 2, "memory_bytes": 3072, "step_bytes": 2304}
    told = "copies: no 2 lost ranks need a checkpoint; up to 3.07 KB a rank, 2.30 KB a step over all ranks"
    assert RecordText().lines({"copies": copies}) == [told]
    (line,) = RecordText().lines({"copies": {**copies, "survived": 1}})
    assert line.startswith("warning: copies: no lost rank needs a checkpoint")
    assert line.endswith("2 were wanted, and there are too few ranks")
    (line,) = RecordText().lines({"copies": {**copies, "survived": 0}})
    assert line.startswith("warning: copies: a lost rank needs a checkpoint")


def test_under_torchrun_a_run_is_fail_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    ((flag, text),) = check(parsed("--elastic"))
    assert flag == "--elastic" and "a run ends with the first loss" in text


def test_a_change_of_the_ranks_is_one_line() -> None:
    change = {
        "generation": 1,
        "lost": [1],
        "joined": [2],
        "strategy": "small",
        "note": "compiled ahead",
        "prepared": True,
        "halted_s": 0.1,
        "chosen_s": 0.0,
        "groups_s": 0.02,
        "state_s": 0.03,
        "resumed_s": 0.25,
        "bytes_moved": 2048,
    }
    assert RecordText().lines({"regroup": change}) == [
        "lost device 1, device 2 joined: goes on under small (compiled ahead), 0.250 s to the next step"
        " (halted 0.100, chosen 0.000, groups 0.020, state 0.030), 2.05 KB moved"
    ]


HERE = (
    "--elastic",
    "--elastic-hosts",
    "127.0.0.1:29500,127.0.0.1:29501",
    "--elastic-here",
    "127.0.0.1:29501",
)


def test_several_hosts_are_named_alike() -> None:
    assert not check(parsed(*HERE, ranks=[0]))
    assert [flag for flag, _ in check(parsed(*HERE[:-1], "127.0.0.1:1", replay="a"))] == [
        "--elastic-here",
        "--ranks",
        "--replay",
    ]
    for hosts in ("a", "a:0", "a:1,a:1", ":3", "a:b", "a:70000"):
        ((flag, text),) = check(parsed("--elastic", "--elastic-hosts", hosts, ranks=[0]))
        assert flag == "--elastic-hosts" and hosts in text
    assert ("--elastic-hosts", "goes with --elastic only") in check(parsed(*HERE[1:]))


def test_strangers_are_kept_out_by_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--elastic", "--elastic-hosts", "a:1,b:1", "--elastic-here", "a:1")
    monkeypatch.delenv("HSPMD_ELASTIC_SECRET", raising=False)
    ((flag, text),) = check(parsed(*flags, ranks=[0]))
    assert flag == "HSPMD_ELASTIC_SECRET" and "is not set" in text
    monkeypatch.setenv("HSPMD_ELASTIC_SECRET", "drawn")
    assert not check(parsed(*flags, ranks=[0]))
