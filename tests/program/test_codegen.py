from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from hspmd_compiler.errors import ArtifactError
from hspmd_compiler.program.codegen import SegmentCache, compile_segment, generate
from hspmd_compiler.program.interpret import interpreted
from hspmd_compiler.program.kernels.kernels import OWN_KERNELS
from hspmd_compiler.program.program import (
    DType,
    Hole,
    InputKind,
    LocalRow,
    OutputKind,
    Segment,
    SegmentInput,
    SegmentOutput,
    Value,
)
from hspmd_compiler.program.requests import SegmentRun


def v(number: int) -> Value:
    return Value(number)


def segment(inputs: list[int], rows: list[LocalRow], outputs: list[int]) -> Segment:
    return Segment(
        "s",
        [SegmentInput(InputKind.MICRO, v(number)) for number in inputs],
        rows,
        [SegmentOutput(OutputKind.MICRO, v(number)) for number in outputs],
    )


def row(out: int, op: str, *args: object, **kwargs: object) -> LocalRow:
    return LocalRow(v(out), op, args, kwargs)


def finish(run: SegmentRun[Tensor], answer: Tensor | None = None) -> tuple[list[Any], tuple[Tensor, ...]]:
    """(what it yielded, its outputs); every communication gets `answer`."""
    calls: list[Any] = []
    try:
        calls.append(next(run))
        while True:
            assert answer is not None
            calls.append(run.send(answer))
    except StopIteration as end:
        return calls, end.value


MIXED = segment(
    [0, 1],
    [
        row(2, "aten.view.default", v(0), (Hole(0), -1)),
        row(3, "aten.split_with_sizes.default", v(2), Hole(1), 1),
        row(4, "getitem", v(3), 1),
        row(5, "aten.detach.default", v(4)),
        row(6, "comm", v(5), 3),
        row(7, "aten._to_copy.default", v(6), dtype=DType("float64")),
        row(
            8,
            "aten.scalar_tensor.default",
            float("-inf"),
            dtype=DType("float64"),
            device="cuda",
            layout="strided",
        ),
        row(9, "aten.where.self", v(1), v(7), v(8)),
        row(10, "aten.clone.default", v(9), memory_format="contiguous_format"),
        row(11, "hspmd.take", v(10), 1, ((0, 1), (2, 3))),
    ],
    [11, 6],
)
LITERALS: list[object] = [2, (1, 3)]


def test_generated_code_and_interpreter_agree() -> None:
    x, mask, answer = torch.randn(8), torch.tensor([True, False, True]), torch.randn(2, 3)
    compiled = finish(compile_segment(MIXED, LITERALS)(x, mask), answer)
    walked = finish(interpreted(MIXED, LITERALS, [x, mask], "cpu"), answer)
    for calls, outputs in (compiled, walked):
        assert len(calls) == 1 and calls[0][0] == 3
        assert torch.equal(calls[0][1], x.view(2, 4)[:, 1:])
        expected = answer.double().masked_fill(~mask, float("-inf"))[:, [0, 2]]
        assert torch.equal(outputs[0], expected)
        assert outputs[1] is answer


def test_the_text_holds_numbers_and_names_only() -> None:
    code = generate(MIXED, LITERALS)
    assert code.text.splitlines()[:4] == [
        "def segment(v0, v1):",
        "    v2 = k0(v0, (2, -1, ))",
        "    del v0",
        "    v3 = k1(v2, (1, 3, ), 1)",
    ]
    assert "v6 = yield (3, v5, False)" in code.text
    assert "inf" not in code.text and "strided" not in code.text


def test_strings_from_a_file_are_never_code() -> None:
    evil = '"); __import__("os").system("false"); ("'
    code = generate(segment([0], [row(1, "hspmd.take", v(0), evil)], [1]), [])
    assert evil not in code.text
    with pytest.raises(ArtifactError):
        generate(segment([0], [row(1, "hspmd.take", v(0), **{evil: 1})], [1]), [])
    with pytest.raises(ArtifactError):
        generate(segment([0], [LocalRow(Value("0; import os"), "hspmd.take", (v(0),))], [0]), [])  # type: ignore[arg-type]
    with pytest.raises(ArtifactError):
        generate(segment([0], [row(1, evil, v(0))], [1]), [])
    with pytest.raises(ArtifactError):
        generate(segment([0], [row(1, "hspmd.take", object())], [1]), [])


def test_values_die_at_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []
    seen: list[weakref.ref[Tensor]] = []

    def probe(x: Tensor) -> Tensor:
        seen.append(weakref.ref(x))
        alive.append(sum(ref() is not None for ref in seen))
        return x + 1

    monkeypatch.setitem(OWN_KERNELS, "hspmd.probe", probe)
    chain = segment([0, 9], [row(n + 1, "hspmd.probe", v(n)) for n in range(6)], [6])
    run = compile_segment(chain, [])(torch.zeros(2), unread := torch.zeros(3))
    watched = weakref.ref(unread)
    del unread
    finish(run)
    gc.collect()
    assert alive == [1] * 6
    assert watched() is None


def test_only_fresh_memory_read_for_the_last_time_may_be_overwritten() -> None:
    def flag(rows: list[LocalRow], outputs: list[int]) -> bool:
        text = generate(segment([0, 1], rows, outputs), []).text
        return "True)" in next(line for line in text.splitlines() if "yield (" in line)

    product, seen = row(2, "aten.mm.default", v(0), v(1)), row(3, "aten._unsafe_view.default", v(2), (1, 4))
    assert flag([product, row(4, "comm", v(2), 0)], [4])
    assert flag([product, seen, row(4, "comm", v(3), 0)], [4])
    assert not flag([product, seen, row(4, "comm", v(3), 0)], [4, 2])
    assert not flag([product, row(4, "comm", v(2), 0), row(5, "aten.add.Tensor", v(2), v(4))], [5])
    assert not flag([row(2, "aten.t.default", v(0)), row(4, "comm", v(2), 0)], [4])
    assert not flag([row(4, "comm", v(0), 0)], [4])


def test_segments_and_literals_alike_share_a_function() -> None:
    cache = SegmentCache()
    assert cache.get(MIXED, LITERALS) is cache.get(MIXED, [2, (1, 3), "not read"])
    assert cache.get(MIXED, LITERALS) is not cache.get(MIXED, [2, (3, 1)])
