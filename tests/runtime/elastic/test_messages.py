"""Messages come through a pipe as they were, in whatever pieces; what is not of its type is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.base.typed import Misfits
from hspmd_compiler.runtime.elastic.messages import (
    Abort,
    Arrived,
    Beat,
    Downward,
    Finish,
    Halt,
    HeldReport,
    Lines,
    NextGeneration,
    Pause,
    RunPosition,
    ToldRecord,
    Upward,
    WorldMember,
    from_line,
    to_line,
)

MESSAGES: list[Upward | Downward] = [
    Beat(),
    Halt(
        3,
        HeldReport(2, 7, True, False, True, 3),
        "why\nso",
        RunPosition(1, 2, 3, -4, 5, 6, 0.5),
        {"step": 7, "loss": 0.5},
    ),
    Halt(-1, HeldReport()),
    Arrived(4, 0.25, 0.5, 1 << 40),
    ToldRecord({"regroup": {"lost": [1]}, "text": "ä"}),
    Abort(4),
    Pause(),
    Finish(),
    NextGeneration(
        2,
        (WorldMember(0, 3), WorldMember(7, 5)),
        "localhost",
        4000,
        "A",
        "/a/b",
        (0, 1),
        "",
        1,
        9,
        checkpoint="c",
        restored="r",
        copies="k",
    ),
]


@given(st.lists(st.sampled_from(MESSAGES), max_size=6), st.integers(1, 40))
def test_messages_come_in_pieces(messages: list[Upward | Downward], size: int) -> None:
    data = b"".join(map(to_line, messages))
    lines = Lines()
    found = [each for start in range(0, len(data), size) for each in lines.take(data[start : start + size])]
    assert found == messages


def test_a_field_of_another_type_is_refused() -> None:
    with pytest.raises(Misfits):
        from_line(b'{"abort": {"generation": "4"}}')
    with pytest.raises(Misfits):
        from_line(b'{"pause": {"at": 4}}')


def test_a_rank_finds_its_place_in_a_generation() -> None:
    order = MESSAGES[-1]
    assert isinstance(order, NextGeneration) and order.rank_of(7) == 1
