"""How operators with rules in letters are called, for the brute-force test of rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from hspmd_compiler.verify.rules.split_operands import Operand
from hspmd_compiler.verify.rules.split_operator import OperandSketch

from .rule_cases import FULL, MATRIX, ROW, B, Case, F, T, Take, normal, picked

C = 3
SIZES = {1: (5,), 2: (4, 5), 3: (4, 3, 5)}
POINTS = Operand((B, T, F), normal)


def windows() -> Iterator[Case]:
    """All of them."""
    for dims in SIZES:
        for kind in ("reflection", "replication"):
            yield from paddings(f"aten.{kind}_pad{dims}d", dims)
    for dims in (2, 3):
        yield from unpoolings(dims)
        yield from samplings(dims)
    yield from antialiased()
    yield from numbers()
    yield from products()
    yield from distances()


def image(sizes: tuple[int, ...]) -> Operand:
    """Samples with channels."""
    return replace(FULL, shape=(B, C, *sizes))


def paddings(name: str, dims: int) -> Iterator[Case]:
    """Unequal at both ends, with samples and without."""
    pad = (1, 2, 0, 1, 1, 1)[: 2 * dims]
    sizes = SIZES[dims]
    padded = tuple(
        size + pad[2 * (dims - 1 - i)] + pad[2 * (dims - 1 - i) + 1] for i, size in enumerate(sizes)
    )
    forward, backward = f"{name}.default", f"{name}_backward.default"
    yield Case(forward, lambda s, take: s.call(forward, (take(image(sizes)), pad)))
    single = Operand((C, *sizes), normal, sample=None)
    yield Case(forward, lambda s, take: s.call(forward, (take(single), pad)))
    yield Case(backward, lambda s, take: s.call(backward, (take(image(padded)), take(image(sizes)), pad)))


def unpoolings(dims: int) -> Iterator[Case]:
    """Every place is taken once."""
    op = f"aten.max_unpool{dims}d.default"
    size, large = (2,) * dims, (4,) * dims

    def places(shape: tuple[int, ...]) -> Tensor:
        draw = [torch.randperm(4**dims)[: 2**dims] for _ in range(shape[0] * shape[1])]
        return torch.stack(draw).reshape(shape)

    index = replace(image(size), make=places, linear=False, pure=True)
    rest: tuple[object, ...] = (large,) if dims == 2 else (large, (2,) * dims, (0,) * dims)
    yield Case(op, lambda s, take: s.call(op, (take(image(size)), take(index), *rest)))


def samplings(dims: int) -> Iterator[Case]:
    """Inside the image and outside, with both gradients and with one."""
    forward, backward = f"aten.grid_sampler_{dims}d.default", f"aten.grid_sampler_{dims}d_backward.default"
    sizes = SIZES[dims]
    grid = Operand((B, *sizes, dims), lambda shape: torch.rand(shape, dtype=torch.float64) * 2.4 - 1.2)
    made = image(sizes)
    yield Case(forward, lambda s, take: s.call(forward, (take(made), take(grid), 0, 0, False)))
    yield Case(
        backward,
        lambda s, take: picked(
            s, backward, (take(made), take(made), take(grid), 0, 0, False, (True, True)), 2
        ),
    )
    yield Case(
        backward,
        lambda s, take: s.pick(
            s.call(backward, (take(made), take(made), take(grid), 0, 1, True, (False, True))), 1
        ),
    )


def antialiased() -> Iterator[Case]:
    """The shape of a gradient is an argument."""
    large, small = image((4, 5)), image((2, 3))
    size, shape = small.shape[2:], large.shape
    for kind in ("bilinear", "bicubic"):
        forward, backward = (f"aten._upsample_{kind}2d_aa{end}.default" for end in ("", "_backward"))
        yield Case(forward, lambda s, take, op=forward: s.call(op, (take(large), size, False)))  # type: ignore[misc]
        yield Case(
            backward,
            lambda s, take, op=backward: s.call(op, (take(small), size, shape, False)),  # type: ignore[misc]
        )


def numbers() -> Iterator[Case]:
    """Complex numbers out of pairs, and back; places among bounds."""
    pairs = replace(FULL, shape=(B, T, 3, 2))
    yield Case("aten.view_as_complex.default", lambda s, take: _as_complex(s, take, pairs))
    yield Case("aten.view_as_real.default", lambda s, take: _as_complex(s, take, pairs))
    yield Case("aten._conj.default", lambda s, take: _conjugate(s, take, pairs))
    op, other = "aten.searchsorted.Tensor", "aten.bucketize.Tensor"
    bounds = Operand((3,), lambda shape: torch.arange(*shape) - 1.3, sample=None, linear=False)
    yield Case(op, lambda s, take: s.call(op, (take(bounds), take(FULL))))
    yield Case(other, lambda s, take: s.call(other, (take(FULL), take(bounds))))
    more = {"right": True, "out_int32": True}
    yield Case(other, lambda s, take: s.call(other, (take(FULL), take(bounds)), more))


def _as_complex(s: OperandSketch, take: Take, pairs: Operand) -> None:
    made = s.call("aten.view_as_complex.default", (take(pairs),))
    s.call("aten.view_as_real.default", (s.call("aten.mul.Tensor", (made, made)),))


def _conjugate(s: OperandSketch, take: Take, pairs: Operand) -> None:
    made = s.call("aten._conj.default", (s.call("aten.view_as_complex.default", (take(pairs),)),))
    s.call("aten.view_as_real.default", (s.call("aten.clone.default", (made,)),))


def products() -> Iterator[Case]:
    """Of a matrix and a vector, and of two vectors."""
    yield Case("aten.mv.default", lambda s, take: s.call("aten.mv.default", (take(MATRIX), take(ROW))))
    for op in ("aten.dot.default", "aten.vdot.default"):
        yield Case(op, lambda s, take, op=op: s.call(op, (take(ROW), take(ROW))))  # type: ignore[misc]


def distances() -> Iterator[Case]:
    """Between the points of a sample."""
    others = replace(POINTS, shape=(B, 5, F))
    for power in (1.0, 2.0):
        yield Case(
            "aten._cdist_forward.default",
            lambda s, take, p=power: _distances(s, take, others, p),  # type: ignore[misc]
        )
        yield Case("aten._cdist_backward.default", lambda s, take, p=power: _distances(s, take, others, p))  # type: ignore[misc]


def _distances(s: OperandSketch, take: Take, others: Operand, power: float) -> None:
    first, second = take(POINTS), take(others)
    made = s.call("aten._cdist_forward.default", (first, second, power, None))
    grad = take(replace(FULL, shape=(B, T, 5)))
    s.call("aten._cdist_backward.default", (grad, first, second, power, made))
