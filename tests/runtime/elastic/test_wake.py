"""What wakes a rank that waits: NCCL by a backend that notes what is called; gloo is in test_launcher."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hspmd_compiler.runtime.elastic.training import ElasticVote
from hspmd_compiler.runtime.elastic.wake import NCCL_ENVIRONMENT, NcclWake
from hspmd_compiler.runtime.transport import PeerLost


class Recorder:
    """Stands for NCCL: work that an abort cuts off ends as if it had succeeded, with any numbers."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.environment: dict[str, str] = {}
        self.wake = NcclWake(self.abort_all, self.environment)
        self.pausing = False
        self.is_flagged_first = False

    def abort_all(self) -> None:
        with pytest.raises(PeerLost):
            self.wake.check()
        self.is_flagged_first = True
        self.calls += ["group_start", "abort", "abort", "group_end"]

    def all_reduce(self, value: Tensor) -> Tensor:
        return value * torch.nan if self.is_flagged_first else value

    def check(self) -> None:
        self.wake.check()


def test_the_flag_is_up_before_all_groups_are_aborted_together() -> None:
    nccl = Recorder()
    nccl.wake.wake([object(), object()])
    assert nccl.is_flagged_first and nccl.calls == ["group_start", "abort", "abort", "group_end"]
    with pytest.raises(PeerLost, match="generation ended"):
        nccl.wake.check()


def test_the_environment_keeps_the_library_from_ending_the_process() -> None:
    nccl = Recorder()
    nccl.wake.prepare()
    assert nccl.environment == NCCL_ENVIRONMENT
    assert nccl.environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"


def test_nothing_is_destroyed_after_an_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = Recorder()
    destroyed: list[bool] = []
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: destroyed.append(True))
    nccl.wake.leave()
    assert len(destroyed) == 1, "a generation that paused is left in order"
    nccl.wake.wake([object()])
    nccl.wake.leave()
    assert len(destroyed) == 1
    nccl.wake.joined()
    nccl.wake.check()


def test_no_vote_passes_on_what_an_abort_has_left() -> None:
    nccl = Recorder()
    agent: Any = nccl
    vote = ElasticVote(agent, torch.device("cpu"))
    assert vote.enter() is False
    nccl.wake.wake([object()])
    assert torch.isnan(nccl.all_reduce(torch.ones(1))), "it has come, and means nothing"
    with pytest.raises(PeerLost):
        vote.passed(False)
    with pytest.raises(PeerLost):
        vote.enter()
