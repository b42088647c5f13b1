"""Values survive the way to JSON and back, and a wrong value is named by file and key path."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.artifact.encode_shared import SharingWriter
from hspmd_compiler.artifact.json_text import fingerprint, parse, to_text
from hspmd_compiler.base.codec import Json, decode, encode, literals_in
from hspmd_compiler.errors import ArtifactError, InternalError
from hspmd_compiler.program.program import Argument, ClassProgram, DType, Hole, RankProgram, Value
from tests.artifact import sample
from tests.verify.hand_made import pipeline

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63) + 1, (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.builds(Value, st.integers(0, 1 << 40))
    | st.builds(Hole, st.integers(0, 1 << 40))
    | st.sampled_from([DType("float32"), DType("bool")])
)
ARGUMENTS = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=12)


(LITERALS,) = literals_in(Argument)


def through_text(value: Any) -> Json:
    return parse(to_text(value, 2).encode(), "f.json")


def argument_again(value: object) -> object:
    return LITERALS.read(through_text(LITERALS.encode(value)))


@given(ARGUMENTS)
def test_arguments_come_back_the_same(value: object) -> None:
    back = argument_again(value)
    assert back == value
    assert repr(back) == repr(value)  # 1 is not 1.0 and not True


def test_not_a_number_comes_back() -> None:
    back = argument_again(math.nan)
    assert isinstance(back, float)
    assert math.isnan(back)


def test_programs_come_back_the_same() -> None:
    program = sample.program()
    for shared in program.classes.values():
        assert decode(ClassProgram, through_text(encode(shared)), "f.json") == shared
    for own in program.ranks:
        assert decode(RankProgram, through_text(encode(own)), "f.json") == own


def test_ranks_that_share_entries_are_written_as_if_they_did_not() -> None:
    ranks = [*sample.program().ranks, *pipeline().ranks]
    sharing = SharingWriter(ranks)
    for own in ranks:
        assert to_text(sharing.encode(own), 2) == to_text(encode(own), 2)


def test_no_other_type_gets_into_an_argument() -> None:
    with pytest.raises(InternalError, match="not an argument"):
        LITERALS.encode(sample.gather(0))
    with pytest.raises(InternalError, match="no place"):
        encode({1, 2})


def test_one_row_a_line() -> None:
    text = to_text({"a": [[1, 2], [3, {"b": 4}]], "c": [], "d": "é"}, 2)
    assert text == '{\n "a": [\n  [1,2],\n  [3,{"b":4}]\n ],\n "c": [],\n "d": "é"\n}\n'


def test_fingerprint_ignores_the_order_of_keys() -> None:
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def rank_json() -> Any:
    return deepcopy(encode(sample.program().ranks[3]))


def put(value: Any, path: list[str | int], new: object) -> Any:
    place = value
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return value


BAD_RANKS = [
    (["rank"], "3", "rank", "an integer"),
    (["rank"], True, "rank", "an integer"),
    (["device_kind"], 5, "device_kind", "a text"),
    (["rows", 0], [1], "rows[0]", "a list of 2"),
    (["comms", 1, "kind"], "gossip", "comms[1].kind", "one of all_reduce"),
    (["comms", 1, "sends", 0, "boxes", 0, 1, 0], 1.5, "comms[1].sends[0].boxes[0][1][0]", "an integer"),
    (["instructions", 0, "op"], "FORWRAD", "instructions[0].op", "one of STEP_COMPUTE"),
    (["instructions", 0, "when"], 1, "instructions[0].when", "no key of this name"),
    (["literals", 0], {"eval": "1"}, "literals[0]", "one key of v, hole, dtype, size, float"),
    (["literals", 0], {"v": -1}, "literals[0].v", "at least 0"),
    (["literals", 0], {"dtype": "object"}, "literals[0].dtype", "a dtype"),
    (["literals", 0], {"float": []}, "literals[0]", "one key of"),
    (["literals", 0], {"float": "1e400"}, "literals[0]", "one key of"),
    (["shards", 0, "trainable"], 1, "shards[0].trainable", "true or false"),
    (["shards", 0], [], "shards[0]", "a mapping with the keys name, dtype"),
]


@pytest.mark.parametrize(("path", "new", "where", "wanted"), BAD_RANKS)
def test_a_wrong_value_is_named(path: list[str | int], new: object, where: str, wanted: str) -> None:
    content = put(rank_json(), path, new)
    with pytest.raises(ArtifactError) as caught:
        decode(RankProgram, content, "ranks/3.json")
    assert caught.value.at == (f"ranks/3.json: {where}",)
    assert wanted in dict(caught.value.details)["wanted"]


def test_every_missing_unknown_and_wrong_one_is_named() -> None:
    value = rank_json()
    del value["shards"], value["rank"]
    value["world"], value["device"] = 1, "a"
    with pytest.raises(ArtifactError) as caught:
        decode(RankProgram, value, "ranks/3.json")
    assert caught.value.at == ("ranks/3.json",)
    assert [path for path, _ in caught.value.details] == ["rank", "device", "shards", "world"]


def test_no_number_is_longer_than_63_bits() -> None:
    whole = put(rank_json(), ["device"], (1 << 63) - 1)
    assert decode(RankProgram, put(whole, ["device_kind"], "9" * 30), "f.json").device == (1 << 63) - 1
    with pytest.raises(ArtifactError, match=r"f\.json: rows\[0\]\[1\]"):
        decode(RankProgram, put(whole, ["rows", 0, 1], 1 << 63), "f.json")


@pytest.mark.parametrize("content", [b"{", b"NaN", b'{"a": Infinity}', b"\xff", b"[" * 100_000])
def test_what_is_not_json_is_refused(content: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"f\.json is not JSON"):
        parse(content, "f.json")
