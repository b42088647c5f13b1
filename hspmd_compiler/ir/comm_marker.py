"""Markers: identities that tracing keeps, places where a value may be laid out as somebody wishes.

`comm(x, annotation)` is a user's, in model code. An anchor stands behind a call of an unmodified model, under
a name; a strategy says which of them ask for a layout.
"""

from __future__ import annotations

import torch

from ..errors import AnnotationError


@torch.library.custom_op("hspmd::comm", mutates_args=())
def _comm(x: torch.Tensor, annotation: str) -> torch.Tensor:
    return x.clone()


@torch.library.custom_op("hspmd::comm_backward", mutates_args=())
def _comm_backward(grad: torch.Tensor, annotation: str) -> torch.Tensor:
    return grad.clone()


@torch.library.custom_op("hspmd::anchor", mutates_args=())
def anchor(x: torch.Tensor, name: str) -> torch.Tensor:
    """`x`, with an anchor behind it."""
    return x.clone()


@torch.library.custom_op("hspmd::anchor_backward", mutates_args=())
def _anchor_backward(grad: torch.Tensor, name: str) -> torch.Tensor:
    return grad.clone()


@_comm.register_fake
def _(x: torch.Tensor, annotation: str) -> torch.Tensor:
    return torch.empty_like(x)


@_comm_backward.register_fake
def _(grad: torch.Tensor, annotation: str) -> torch.Tensor:
    return torch.empty_like(grad)


@anchor.register_fake
def _(x: torch.Tensor, name: str) -> torch.Tensor:
    return torch.empty_like(x)


@_anchor_backward.register_fake
def _(grad: torch.Tensor, name: str) -> torch.Tensor:
    return torch.empty_like(grad)


def _save(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, str], output: object) -> None:
    ctx.said = inputs[1]  # type: ignore[attr-defined]


def _differentiate(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return _comm_backward(grad, ctx.said), None  # type: ignore[attr-defined]


def _differentiate_anchor(
    ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor
) -> tuple[torch.Tensor, None]:
    return _anchor_backward(grad, ctx.said), None  # type: ignore[attr-defined]


_comm.register_autograd(_differentiate, setup_context=_save)
anchor.register_autograd(_differentiate_anchor, setup_context=_save)


def comm(x: torch.Tensor, annotation: str) -> torch.Tensor:
    """`x` itself; in a traced model, `x` laid out as `annotation` says.

    annotation: the text form of an Annotation, with one subgroup for the devices of each stage that
    reaches the marker. A gradient is split as its value is; where the value is not split, it is left
    to the operators around it.
    """
    if not isinstance(annotation, str):
        raise AnnotationError(
            f"comm() got an annotation of type {type(annotation).__name__}",
            rule="an annotation in model code is given as text",
            fix="comm(x, '[0,1] <S0x2>'), or str(annotation)",
        )
    if not torch.compiler.is_exporting():
        return x
    marked: torch.Tensor = _comm(x, annotation)
    return marked
