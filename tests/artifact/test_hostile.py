"""Whatever stands in a file: it is read as it is meant, or refused with an ArtifactError; nothing else."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.artifact.store import ProgramHead
from hspmd_compiler.base.codec import decode, encode
from hspmd_compiler.errors import ArtifactError
from hspmd_compiler.program.check import check
from hspmd_compiler.program.lifetimes import dead_after, fresh_by_segment, overwritable_comms
from hspmd_compiler.program.program import ClassProgram, Program, RankProgram
from tests.artifact import sample

NUMBERS = st.integers(-3, 12) | st.integers() | st.floats(allow_nan=False)
SCALARS = (
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from(["w1", "float32", "comm"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["v", "hole", "op"]), inner),
    max_leaves=4,
)


def files() -> dict[str, Any]:
    program = sample.program()
    head = ProgramHead(program.world_size, program.batch, program.inputs, program.aliases, program.groups)
    named: dict[str, Any] = {"program": encode(head)}
    named |= {name: encode(shared) for name, shared in program.classes.items()}
    return named | {f"rank {own.rank}": encode(own) for own in program.ranks}


FILES = files()


def places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in [(value, key), *places(item)]]


def read(content: dict[str, Any]) -> Program:
    head = decode(ProgramHead, content["program"], "program.json")
    classes = {name: decode(ClassProgram, content[name], name) for name in sample.program().classes}
    ranks = [decode(RankProgram, content[name], name) for name in content if name.startswith("rank ")]
    return Program(head.world_size, head.batch, head.inputs, head.aliases, classes, ranks, head.groups)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_changed_value_is_read_or_refused(data: st.DataObject) -> None:
    content = deepcopy(FILES)
    container, key = data.draw(st.sampled_from(places(content[data.draw(st.sampled_from(sorted(content)))])))
    container[key] = data.draw(VALUES)
    with suppress(ArtifactError):
        program = read(content)
        check(program)
        look_at_memory(program)


def look_at_memory(program: Program) -> None:
    """What lives how long, as code is made by it."""
    for shared in program.classes.values():
        fresh_by_segment(shared)
        for segment in shared.segments:
            overwritable_comms(segment, dead_after(segment))


def test_a_view_of_nothing_is_no_failure_of_ours() -> None:
    content = deepcopy(FILES)
    dicts = [own[key] for own, key in places(content) if isinstance(own[key], dict)]
    views = [row for row in dicts if row.get("op") == "aten.t.default"]
    for row in views:
        row["args"].clear()
    assert views
    look_at_memory(read(content))


def test_unchanged_it_is_read() -> None:
    check(read(deepcopy(FILES)))
