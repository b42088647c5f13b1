"""Entries that ranks have in common are one object; every one of them is still checked."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import is_dataclass
from typing import Any, cast, get_args, get_origin, get_type_hints

import pytest

from hspmd_compiler.artifact.decode_shared import SharingReader, tables_of
from hspmd_compiler.base.codec import decode, encode
from hspmd_compiler.errors import ArtifactError
from hspmd_compiler.program.program import Instruction, RankProgram, Segment, Shard

from ..verify.hand_made import pipeline


def test_equal_entries_are_one_object_in_lists_of_their_own() -> None:
    own = pipeline().ranks[0]
    sharing = SharingReader()
    one, two = (sharing.decode(RankProgram, encode(own), "ranks/0.json") for _ in range(2))
    assert one == two == own == decode(RankProgram, encode(own), "ranks/0.json")
    assert one.shards is not two.shards and all(a is b for a, b in zip(one.shards, two.shards, strict=True))
    assert all(a is b for a, b in zip(one.instructions, two.instructions, strict=True))


def test_a_number_of_another_type_is_not_taken_for_one_that_was_read() -> None:
    good = cast(dict[str, Any], encode(pipeline().ranks[0]))
    bad = deepcopy(good)
    bad["shards"][0]["trainable"] = 1
    sharing = SharingReader()
    sharing.decode(RankProgram, good, "ranks/0.json")
    with pytest.raises(ArtifactError) as error:
        sharing.decode(RankProgram, bad, "ranks/1.json")
    assert "ranks/1.json: shards[0].trainable" in str(error.value)


def test_only_entries_that_can_not_change_are_shared() -> None:
    shared = tables_of(RankProgram)
    assert shared["shards"] is Shard and shared["instructions"] is Instruction
    assert shared.keys().isdisjoint({"rows", "literals", "saved"}) and tables_of(Segment).keys() == {
        "inputs",
        "outputs",
    }
    assert all(is_unchanging(kind) for kind in shared.values())


def is_unchanging(hint: Any) -> bool:
    """Frozen itself, and so is all that is in its fields."""
    if is_dataclass(hint):
        kind: Any = hint
        return kind.__dataclass_params__.frozen and all(map(is_unchanging, get_type_hints(kind).values()))
    return get_origin(hint) not in (list, dict, set) and all(map(is_unchanging, get_args(hint)))
