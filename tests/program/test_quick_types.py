"""Types by rule are those of PyTorch's own kernels without data, for whatever shapes and layouts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hspmd_compiler.program.operator_types import typed_of
from hspmd_compiler.program.quick.mode import QuickTypes
from hspmd_compiler.program.quick.table import ARITHMETIC, BITS, REAL, TRUTH

aten = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
SIZES = st.integers(0, 3)
Operands = tuple[Tensor, ...]


@st.composite
def laid_out(draw: Any, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...] = DTYPES) -> Tensor:
    """A tensor of a shape that may be broadcast, its dims in any order in memory, with or without gaps."""
    kept = shape[draw(st.integers(0, len(shape))) :] if draw(st.booleans()) else shape
    sizes = [1 if draw(st.integers(0, 4)) == 0 else size for size in kept]
    order = draw(st.permutations(range(len(sizes))))
    gap = draw(st.integers(1, 2))
    whole = torch.empty(
        [sizes[dim] * gap for dim in order], dtype=draw(st.sampled_from(dtypes)), device="meta"
    )
    cut = whole[tuple(slice(0, sizes[dim]) for dim in order)]
    return cut.permute([order.index(dim) for dim in range(len(sizes))])


def types_of(call: Callable[[], Any]) -> object:
    """Types of all results; None where the operator refuses."""
    try:
        made = call()
    except (RuntimeError, TypeError, IndexError):
        return None
    return [_told(*typed_of(each)) for each in (made if isinstance(made, tuple) else (made,))]


def _told(shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...]) -> object:
    """Strides of dims of one entry say nothing, and those of no entries."""
    steps = [step for size, step in zip(shape, strides, strict=True) if size > 1]
    return shape, dtype, steps if 0 not in shape else []


def check(operator: Any, *given: Any, **named: Any) -> None:
    def call() -> Any:
        return operator(*given, **named)

    with torch.no_grad():
        expected = types_of(call)
        with QuickTypes():
            found = types_of(call)
    assert found == expected or expected is None, (operator, given, named)


def operator_of(name: str) -> Any:
    packet, overload = name.split(".")
    return getattr(getattr(aten, packet), overload)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_element_by_element(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(SIZES, max_size=4)))
    operator = operator_of(data.draw(st.sampled_from(ARITHMETIC + REAL + TRUTH + BITS)))
    kinds = [str(argument.type) for argument in operator._schema.arguments if not argument.kwarg_only]
    numbers = {"Tensor": laid_out(shape), "Scalar": st.sampled_from([2, 0.5, True]), "number": st.just(2)}
    check(operator, *(data.draw(numbers[kind]) for kind in kinds if kind in numbers))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_of_one_tensor(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(SIZES, min_size=1, max_size=4)))
    value = data.draw(laid_out(shape))
    dim = data.draw(st.integers(-value.dim(), max(value.dim() - 1, 0)))
    keep = data.draw(st.booleans())
    for operator in (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default):
        check(operator, value, [dim], keep)
    check(aten.sum.default, value)
    for operator in (aten.zeros_like.default, aten.empty_like.default, aten.clone.default):
        check(operator, value)
    check(aten.zeros_like.default, value, dtype=torch.bool)
    check(aten.clone.default, value, memory_format=torch.contiguous_format)
    check(aten._softmax.default, value, dim, False)
    check(aten._log_softmax.default, value, dim, False)
    check(aten._log_softmax_backward_data.default, value, value, dim, value.dtype)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_of_several(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(SIZES, min_size=1, max_size=4)))
    one, other = data.draw(laid_out(shape)), data.draw(laid_out(shape))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    check(aten.cat.default, [one, other], dim)
    check(aten.where.self, one.bool(), one, other)
    check(aten.masked_fill.Scalar, one, other.bool(), 0)
    check(aten.mm.default, one, other)
    check(aten.bmm.default, one, other)
    check(aten.addmm.default, data.draw(laid_out(shape)), one, other)
    ids = torch.zeros(one.shape, dtype=torch.int64, device="meta")
    check(aten.gather.default, other, dim, ids)
    check(aten.scatter.src, other, dim, ids, one)
    check(aten.embedding.default, torch.empty(5, 3, device="meta"), ids)
    if one.dtype is torch.float32 and one.dim() > 1:
        lead = torch.zeros(one.shape[:-1], dtype=torch.int64, device="meta")
        check(aten.embedding_dense_backward.default, one, lead, 5, -1, False)


def test_attention_arange_and_slices() -> None:
    value = torch.empty(2, 5, 3, 4, device="meta").transpose(1, 2)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        query = value.to(dtype)
        check(aten._scaled_dot_product_flash_attention_for_cpu.default, query, query, query, 0.0, True)
    check(aten.arange.default, 7, device="meta")
    check(aten.arange.default, 7, dtype=torch.float32, device="meta")
    check(aten.arange.default, 2.5, device="meta")
    check(aten.slice_backward.default, torch.empty(2, 1, device="meta"), [2, 8], 1, 0, 1, 1)
    check(aten._unsafe_view.default, torch.empty(2, 6, device="meta"), [3, 4])


def test_answers_do_not_import_symbolic_shapes() -> None:
    """Rules that call slow kernels after all would be worth nothing."""
    code = (
        "import sys, torch\n"
        "from hspmd_compiler.program.quick.mode import QuickTypes\n"
        "from hspmd_compiler.program.kernels.vocab_kernels import vocab_embedding\n"
        "with torch.no_grad(), QuickTypes():\n"
        "    ids = torch.zeros(2, 3, dtype=torch.int64, device='meta')\n"
        "    rows = vocab_embedding(torch.empty(4, 8, device='meta'), ids, ((0, 4),))\n"
        "    (rows.transpose(0, 1) * rows[:, 0] + 1).contiguous().mean(-1)\n"
        "print('sympy' in sys.modules, 'torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_tensor_with_data_is_computed() -> None:
    """Rules are of tensors without data."""
    with torch.no_grad(), QuickTypes():
        assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))
        assert torch.cat([torch.ones(1), torch.ones(1)]).tolist() == [1.0, 1.0]
