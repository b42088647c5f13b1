"""Types by shape are those that the operator's kernel gives: checked on the CPU, known for CUDA."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hspmd_compiler.program.interpret import read_row
from hspmd_compiler.program.kernels.kernels import kernel
from hspmd_compiler.program.operator_types import Memory, OperatorBook, Sketch, Typed, span, typed_of
from hspmd_compiler.program.program import LocalRow, Value

Call = Callable[[torch.dtype], tuple[str, tuple[object, ...]]]
NORM = "aten.native_layer_norm.default"
CALLS: dict[str, Call] = {
    "layer norm": lambda t: (NORM, (torch.ones(3, 4, dtype=t), (4,), torch.ones(4, dtype=t), None, 1e-5)),
    "transposed product": lambda t: (
        "aten.mm.default",
        (torch.ones(4, 3, dtype=t).t(), torch.ones(4, 2, dtype=t)),
    ),
    "softmax in float32": lambda t: ("aten._softmax.default", (torch.ones(3, 4, dtype=t).t(), -1, False)),
    "group norm": lambda t: (
        "hspmd.group_norm",
        (torch.ones(2, 4, 3, dtype=t), None, None, 2, 4, 3, 2, 1e-5),
    ),
    "attention": lambda t: (
        "hspmd.attention",
        (*[torch.ones(2, 3, 4, 8, dtype=t)] * 3, None, 0.0, True, None),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", list(CALLS))
def test_types_are_those_of_the_kernel(name: str, dtype: torch.dtype) -> None:
    op, arguments = CALLS[name](dtype)
    real = kernel(op)(*arguments)
    assert types(op, arguments, "cpu") == [
        typed_of(t) for t in (real if isinstance(real, tuple) else (real,))
    ]


@pytest.mark.parametrize(("kind", "statistics"), [("cpu", torch.bfloat16), ("cuda", torch.float32)])
def test_a_kind_of_device_has_types_of_its_own(kind: str, statistics: torch.dtype) -> None:
    """CUDA's need not be present."""
    op, arguments = CALLS["layer norm"](torch.bfloat16)
    assert [dtype for _, dtype, _ in types(op, arguments, kind)] == [torch.bfloat16, statistics, statistics]


def test_a_device_that_pytorch_was_built_without_is_not_asked() -> None:
    """PyTorch sketches a log softmax by `contiguous`, which classes in dim 1 before tokens are not."""
    classes = torch.ones(2, 3, 4).transpose(1, 2)
    found = types("aten._log_softmax.default", (classes, 1, False), "cuda")
    assert found == [((2, 4, 3), torch.float32, (12, 3, 1))]


def types(op: str, arguments: tuple[object, ...], kind: str) -> list[Typed]:
    """What the book says of a call; tensors among the arguments are its operands."""
    operands = {i: sketch(item) for i, item in enumerate(arguments) if isinstance(item, Tensor)}
    args = tuple(Value(i) if i in operands else item for i, item in enumerate(arguments))
    call = read_row(LocalRow(Value(len(args)), op, args), [])
    book = OperatorBook()
    made = book.result(book.number(call), call, dict(operands), kind)
    return [item.typed for item in (made if isinstance(made, tuple) else (made,)) if item is not None]


def sketch(tensor: Tensor) -> Sketch:
    """A tensor without its numbers."""
    typed = typed_of(tensor)
    return Sketch(typed, Memory(span(typed)))
