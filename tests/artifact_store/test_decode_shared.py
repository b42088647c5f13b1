"""Entries that ranks have in common are one object; every one of them is still checked."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, cast

import pytest

from hspmd_compiler.artifact.decode import decode
from hspmd_compiler.artifact.decode_shared import SharingReader, frozen_entry
from hspmd_compiler.artifact.encode import encode
from hspmd_compiler.artifact.json_node import Node
from hspmd_compiler.artifact.program import Instruction, LocalRow, RankProgram, Shard
from hspmd_compiler.errors import ArtifactError

from ..verify.hand_made import pipeline


def test_equal_entries_are_one_object_in_lists_of_their_own() -> None:
    own = pipeline().ranks[0]
    sharing = SharingReader()
    one, two = (sharing.decode(RankProgram, Node(encode(own), "ranks/0.json")) for _ in range(2))
    assert one == two == own == decode(RankProgram, Node(encode(own), "ranks/0.json"))
    assert one.shards is not two.shards and all(a is b for a, b in zip(one.shards, two.shards, strict=True))
    assert all(a is b for a, b in zip(one.instructions, two.instructions, strict=True))


def test_a_number_of_another_type_is_not_taken_for_one_that_was_read() -> None:
    good = cast(dict[str, Any], encode(pipeline().ranks[0]))
    bad = deepcopy(good)
    bad["shards"][0]["trainable"] = 1
    sharing = SharingReader()
    sharing.decode(RankProgram, Node(good, "ranks/0.json"))
    with pytest.raises(ArtifactError) as error:
        sharing.decode(RankProgram, Node(bad, "ranks/1.json"))
    assert "ranks/1.json: shards[0].trainable" in str(error.value)


def test_only_entries_that_can_not_change_are_shared() -> None:
    assert frozen_entry(list[Shard]) is Shard and frozen_entry(list[Instruction]) is Instruction
    assert frozen_entry(list[LocalRow]) is None and frozen_entry(list[int]) is None
    assert frozen_entry(list[RankProgram]) is None
