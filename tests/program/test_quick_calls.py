"""Calls answered without PyTorch are those that PyTorch answers: types, shared memory and sizes."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.base.dtypes import ELEMENT_TYPES, ElementType
from hspmd_compiler.errors import HspmdError
from hspmd_compiler.program.interpret import untyped_row
from hspmd_compiler.program.kernels.kernels import kernel
from hspmd_compiler.program.operator_names import torch_operator
from hspmd_compiler.program.program import COMM_START, GETITEM, DType, LocalRow, Value
from hspmd_compiler.program.quick import asked
from hspmd_compiler.program.quick.plain import PlainTyped, made
from hspmd_compiler.program.quick.schemas import SCHEMAS
from hspmd_compiler.program.quick.table import RULES, TypeAnswer, quick_answer
from tests.cost_models.priced import MIXED, cluster, compiled, device

F32, F64, BF16, I64, BOOL = (ELEMENT_TYPES[n] for n in ("float32", "float64", "bfloat16", "int64", "bool"))
SIZES = st.integers(0, 4)


def asked_answer(*call: Any) -> TypeAnswer[PlainTyped]:
    """PyTorch's own, with no rule on the way."""
    with patch.object(asked, "_mode", nullcontext):
        return asked.asked_answer(*call)


def told(answer: TypeAnswer[PlainTyped]) -> object:
    """Strides of dims of one entry say nothing, and those of no entries; nor do names of new memories."""
    tensors: list[object] = []
    for part in answer.made:
        if part is None:
            tensors.append(None)
            continue
        shape, dtype, strides = part.typed
        steps = [step for size, step in zip(shape, strides, strict=True) if size > 1]
        memory = part.shared if part.shared >= 0 else part.size
        tensors.append((shape, dtype, [] if 0 in shape else steps, part.shared >= 0, memory))
    return tensors, answer.single


def check(op: str, operands: list[PlainTyped], *more: object, is_answered: bool = True, **named: Any) -> None:
    values = [Value(number) for number in range(len(operands))]
    row = LocalRow(Value(len(operands)), op, (*values, *more), named)
    answer = quick_answer(
        untyped_row(row, ()), {number: ((item,), True) for number, item in enumerate(operands)}
    )
    try:
        wanted = told(asked_answer(row, (), dict(enumerate(operands))))
    except HspmdError:
        return  # PyTorch refuses, and would be asked if it came to that
    assert answer is None or told(answer) == wanted, (op, operands, more)
    assert answer is not None or not is_answered, (op, operands, more)


@st.composite
def laid_out(draw: Any, rank: tuple[int, int] = (0, 4), dtype: ElementType = F32) -> PlainTyped:
    """Its dims in any order in memory, with or without gaps, some read again and again."""
    sizes = draw(st.lists(SIZES, min_size=rank[0], max_size=rank[1]))
    strides, step = [0] * len(sizes), draw(st.integers(1, 2))
    for dim in draw(st.permutations(range(len(sizes)))):
        is_expanded = draw(st.integers(0, 5)) == 0
        strides[dim] = 0 if is_expanded else step
        step *= 1 if is_expanded else max(sizes[dim], 1)
    return tuple(sizes), dtype, tuple(strides)


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_views(data: st.DataObject) -> None:
    value = data.draw(laid_out((1, 4)))
    rank = len(value[0])
    dims = st.integers(-rank, rank - 1)
    first, second, start, end = (data.draw(dims) for _ in range(4))
    check("aten.transpose.int", [value], first, second)
    check("aten.permute.default", [value], tuple(data.draw(st.permutations(range(rank)))))
    check("aten.unsqueeze.default", [value], data.draw(st.integers(-rank - 1, rank)))
    check("aten.slice.Tensor", [value], first, start, end, data.draw(st.integers(1, 3)))
    check("aten.slice.Tensor", [value], first)
    check("aten.select.int", [value], first, 0, is_answered=bool(value[0][first]))
    check("aten.alias.default", [value])
    if rank < 3:
        check("aten.t.default", [value])
    wider = tuple(data.draw(SIZES) if size == 1 else size for size in value[0])
    check("aten.expand.default", [value], (2, *wider))
    check("aten.expand.default", [value], (-1,) * rank)


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_reshapes_and_copies(data: st.DataObject) -> None:
    value = data.draw(laid_out((1, 4)))
    sizes = list(value[0])
    if 0 not in sizes:
        at = data.draw(st.integers(0, len(sizes) - 1))
        joined = [*sizes[:at], *([sizes[at] * sizes[at + 1]] if at + 1 < len(sizes) else [1, sizes[at]])]
        joined += sizes[at + 2 :] if at + 1 < len(sizes) else []
        for wanted in (joined, [-1], [*sizes, 1], [1, *joined], [2, -1]):
            check("aten.reshape.default", [value], tuple(wanted), is_answered=False)
            check("aten.view.default", [value], tuple(wanted), is_answered=False)
        check("aten.reshape.default", [value], tuple(joined))
        check("aten._to_copy.default", [value], dtype=DType("bfloat16"))
        check("aten._to_copy.default", [value], memory_format="contiguous_format", dtype=DType("int64"))
    pads = tuple(data.draw(st.integers(0, 2)) for _ in range(2))
    check("aten.constant_pad_nd.default", [value], pads, 0.0, is_answered=False)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_attention(data: st.DataObject) -> None:
    def heads(length: int) -> PlainTyped:
        order = data.draw(st.permutations(range(4)))
        shape = (2, 3, length, 4)
        strides, step = [0] * 4, 1
        for dim in order:
            strides[dim] = step
            step *= shape[dim]
        return shape, dtype, tuple(strides)

    dtype = data.draw(st.sampled_from([F32, BF16, F64]))
    query, key, value, out = heads(5), heads(6), heads(6), heads(5)
    check("hspmd.attention", [query, key, value], None, 0.0, False, None, is_answered=dtype is not F64)
    lse = made((2, 3, 5), F32 if dtype is not F64 else F64).typed
    check("hspmd.attention_backward", [out, query, key, value, out, lse], None, 0.0, True, None)


def test_kernels_over_a_vocabulary() -> None:
    for dtype in (F32, BF16):
        table, grad = made((5, 3), dtype).typed, made((2, 4, 3), dtype).typed
        ids, logits = made((2, 4), I64).typed, made((6, 5), dtype).typed
        target, column, number = made((6,), I64).typed, made((6, 1), dtype).typed, made((), dtype).typed
        pieces = ((2, 7),)
        check("hspmd.vocab_embedding", [table, ids], pieces)
        check("hspmd.vocab_embedding_backward", [grad, ids], 5, pieces)
        check("hspmd.row_max", [logits], 1)
        check("hspmd.exp_sum", [logits, column], 1)
        check("hspmd.log_softmax_finish", [logits, column, column])
        check("hspmd.log_softmax_backward", [logits, logits, column])
        check("hspmd.valid_count", [target], -100, DType(dtype.name))
        check("hspmd.nll_pick", [logits, target], pieces, -100)
        check("hspmd.nll_backward", [number, target, logits], pieces, -100, None)
        check("hspmd.nll_backward", [number, target, logits, number][:3], pieces, -100, None)
        check("hspmd.nll_rowsum", [number, target], -100, None)
        check("hspmd.zero_unless", [logits], False)
        check("hspmd.zero_unless", [logits], True)
        check("hspmd.full", [], (2, 3), 0.0, DType(dtype.name))
        check("hspmd.checked_index", [ids], 5)
        check("aten.arange.default", [], 7, dtype=DType(dtype.name), device="cpu", pin_memory=False)


def test_norms() -> None:
    for dtype in (F32, BF16, F64):
        value, weight = made((2, 4, 3), dtype).typed, made((3,), dtype).typed
        row = made((2, 4, 1), F32 if dtype is BF16 else dtype).typed
        check("aten.native_layer_norm.default", [value], (3,), None, None, 1e-5)
        values = [Value(number) for number in range(6)]
        grad, held, mean, spread, scale, shift = values
        operands = dict(enumerate([value, value, row, row, weight, weight]))
        for wanted in ((True, True, True), (True, False, False)):
            args = (grad, held, (3,), mean, spread, scale, shift, wanted)
            row_of = LocalRow(Value(6), "aten.native_layer_norm_backward.default", args)
            answer = quick_answer(untyped_row(row_of, ()), {n: ((t,), True) for n, t in operands.items()})
            assert answer is not None and told(answer) == told(asked_answer(row_of, (), operands))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_pieces_of_factors(data: st.DataObject) -> None:
    value = data.draw(laid_out((2, 3)))
    for pieces in (((0, 1),), ((0, 1), (2, 3)), ((0, value[0][1]),)):
        check("hspmd.take", [value], 1, pieces, is_answered=False)
    matrix = made((2, 6), F32).typed
    turned = ((2, 6), F32, (1, 2))
    for item in (matrix, turned):
        check("hspmd.factor_take", [item], (2, 2, 3), 1, ((1, 2),), (2, 3), is_answered=False)
        check("hspmd.place", [item], (2, 2, 3), 1, 4, ((1, 2), (3, 4)), (2, 12))
        check("hspmd.place", [item], (2, 2, 3), 1, 2, ((0, 2),), (2, 6))


def test_types_of_numbers_and_tensors() -> None:
    scalar, matrix = made((), F64).typed, made((2, 3), F32).typed
    for other in (scalar, made((3,), BOOL).typed, made((), I64).typed, made((2, 3), BF16).typed):
        check("aten.mul.Tensor", [matrix, other], is_answered=False)
        check("aten.mul.Tensor", [other, matrix], is_answered=False)
    for number in (2, 2.5, True):
        check("aten.mul.Scalar", [matrix], number)
        check("aten.mul.Scalar", [made((2,), I64).typed], number, is_answered=False)
        check("aten.add.Tensor", [matrix], number)


def test_one_of_several_results() -> None:
    row = LocalRow(Value(1), GETITEM, (Value(0), 1))
    pair = (made((2,), F32).typed, made((3,), BF16).typed)
    answer = quick_answer(untyped_row(row, ()), {0: (pair, False)})
    assert answer is not None and told(answer) == told(asked_answer(row, (), {0: pair}))
    assert answer.made[0] is not None and answer.made[0].shared == 1


def test_schemas_are_torch_s() -> None:
    for op in RULES:
        if op.startswith("aten."):
            found = torch_operator(op)
            assert found is not None, op
            wanted = [
                (item.name, str(item.type), item.kwarg_only, item.default_value)
                for item in found._schema.arguments
            ]
            tensors = ("Tensor", "Optional[Tensor]", "List[Tensor]")
            ours = [(item.name, item.type, item.kwarg_only, item.default_value) for item in SCHEMAS[op]]
            assert [item[0::2] for item in ours] == [item[0::2] for item in wanted], op
            for own, theirs in zip(ours, wanted, strict=True):
                assert (own[1] in tensors) == (theirs[1] in tensors), op
                assert own[1] == theirs[1] or own[1] not in tensors, op
                assert own[3] == theirs[3] or not isinstance(theirs[3], bool | float | list | None), op


def test_each_may_be_called_by_a_program() -> None:
    assert [op for op in RULES if op not in (GETITEM, COMM_START) and not callable(kernel(op))] == []
    assert torch.is_grad_enabled()


def test_a_price_of_a_common_model_loads_no_torch(tmp_path: Path) -> None:
    from hspmd_compiler.artifact.write import write
    from hspmd_compiler.cluster.read import write_cluster

    write(tmp_path / "made", compiled(MIXED))
    write_cluster(cluster([device()] * 4), tmp_path / "c.json")
    code = (
        "import sys\n"
        "from hspmd_compiler.cli.main import main\n"
        f"main(['estimate', {str(tmp_path / 'made')!r}, '--cluster', {str(tmp_path / 'c.json')!r}])\n"
        "print('torch' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip().endswith("False")
