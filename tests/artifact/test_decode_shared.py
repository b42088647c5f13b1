"""Entries that ranks have in common are one object; every one of them is still checked."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import is_dataclass, replace
from typing import Any, cast, get_args, get_origin, get_type_hints

import pytest

from hspmd_compiler.artifact.decode_shared import SharingReader, tables_of
from hspmd_compiler.artifact.encode_shared import MOST_COPIES, SharingWriter
from hspmd_compiler.artifact.json_text import to_text
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


def many() -> list[RankProgram]:
    """Copies of one rank, which have its lists, and one whose own differ."""
    own = pipeline().ranks[0]
    other = replace(own, rank=9, instructions=own.instructions[:-1])
    return [*(replace(own, rank=rank) for rank in range(MOST_COPIES + 1)), other]


def written(ranks: list[RankProgram]) -> tuple[list[Any], dict[int, Any]]:
    """The content of the files of ranks, and of tables."""
    sharing = SharingWriter(ranks)
    files = [json.loads(to_text(sharing.encode(own), 2)) for own in ranks]
    return files, {number: json.loads(to_text([*table], 1)) for table, number in sharing.tables.items()}


def test_lists_of_many_ranks_are_tables() -> None:
    files, tables = written(many())
    assert [isinstance(file["instructions"], dict) for file in files] == [True] * (MOST_COPIES + 1) + [False]
    assert files[0]["shards"] == files[-1]["shards"] == {"table": files[0]["shards"]["table"]}
    read: list[int] = []

    def table_of(number: int) -> tuple[str, Any]:
        read.append(number)
        return f"tables/{number}.json", tables[number]

    sharing = SharingReader()
    found = [sharing.decode(RankProgram, file, "ranks/0.json", table_of) for file in files]
    assert found == many() and sorted(read) == sorted(tables)
    assert found[0].instructions is not found[1].instructions


def test_a_table_of_something_else_is_refused_by_its_name() -> None:
    files, tables = written(many())
    wrong = {**files[0], "shards": files[0]["instructions"]}
    number = files[0]["instructions"]["table"]
    with pytest.raises(ArtifactError) as error:
        SharingReader().decode(
            RankProgram, wrong, "ranks/0.json", lambda at: (f"tables/{at}.json", tables[at])
        )
    assert f"tables/{number}.json" in str(error.value)
    for bad in (-1, True, 1.0, "1"):
        with pytest.raises(ArtifactError, match=r"ranks/0\.json"):
            SharingReader().decode(
                RankProgram, {**files[0], "shards": {"table": bad}}, "ranks/0.json", lambda at: ("", [])
            )


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
