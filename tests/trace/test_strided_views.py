"""`as_strided` by operators that split: the same numbers and gradients, or PyTorch's own call."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hspmd_compiler.trace.capture import DispatchRecorder
from hspmd_compiler.trace.decompositions.strided_views import as_strided

B, T, F = 3, 4, 8
SPLIT = {
    "windows": ((B, 3, 2, F), (T * F, F, F, 1)),
    "windows of an image": ((B, 2, 2, 2, 4), (T * F, 2 * F, 4, F, 1)),
    "windows across chunks": ((B, 7, 2, 4), (T * F, 4, 4, 1)),
    "every second": ((B, 2, 4), (T * F, 2 * F, 2)),
    "copies": ((B, T, 3, F), (T * F, F, 0, 1)),
    "the first token": ((B, F), (T * F, 1)),
    "another order": ((B, F, T), (T * F, 1, F)),
    "three dims along one": ((B, 2, 2, 2), (T * F, 4, 2, 1)),
    "one more dim": ((B, 1, T, F), (T * F, 5, F, 1)),
}
KEPT = {
    "across rows": ((B, 4, 7), (T * F, 7, 1)),
    "across samples": ((B - 1, 2 * T, F), (T * F, F, 1)),
}


def called(x: Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[Tensor, list[str]]:
    names: list[str] = []

    def note(op: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        names.append(str(op))
        return op(*args, **kwargs)

    with DispatchRecorder(note):
        made = as_strided(x, size, stride)
    assert isinstance(made, Tensor)
    return made, names


@pytest.mark.parametrize("name", [*SPLIT, *KEPT])
def test_what_stays_inside_of_dims_is_written_with_their_operators(name: str) -> None:
    size, stride = {**SPLIT, **KEPT}[name]
    x = torch.randn(B, T, F, dtype=torch.float64, requires_grad=True)
    made, names = called(x, size, stride)
    assert ("aten.as_strided.default" in names) == (name in KEPT)
    wanted = x.as_strided(size, stride)
    assert torch.equal(made, wanted)
    grad = torch.randn_like(wanted)
    ours, theirs = (torch.autograd.grad(value, x, grad)[0] for value in (made, wanted))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "x", [torch.randn(B, T, F).mT, torch.randn(B, T, F)[:, 1:], torch.randn(B, 2 * F)[1:]]
)
def test_memory_that_is_not_the_tensors_own_order_is_left_alone(x: Tensor) -> None:
    made = as_strided(x, (2, F), (F, 1), 0)
    assert torch.equal(made, x.as_strided((2, F), (F, 1), 0))  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 12)), min_size=1, max_size=4),
)
def test_whatever_the_strides_the_numbers_are_pytorchs(shape: list[int], dims: list[tuple[int, int]]) -> None:
    x = torch.arange(torch.Size(shape).numel()).reshape(shape)
    size, stride = zip(*dims, strict=True)
    if sum((count - 1) * apart for count, apart in dims) < x.numel():
        made, _ = called(x, size, stride)
        assert torch.equal(made, x.as_strided(size, stride))
