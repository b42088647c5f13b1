"""`comm(x, annotation)`: the user's wish for a layout at one place; an identity that tracing keeps."""

from __future__ import annotations

import torch

from ..errors import AnnotationError

COMM = "hspmd.comm.default"
COMM_BACKWARD = "hspmd.comm_backward.default"


@torch.library.custom_op("hspmd::comm", mutates_args=())
def _comm(x: torch.Tensor, annotation: str) -> torch.Tensor:
    return x.clone()


@torch.library.custom_op("hspmd::comm_backward", mutates_args=())
def _comm_backward(grad: torch.Tensor, annotation: str) -> torch.Tensor:
    return grad.clone()


@_comm.register_fake
def _(x: torch.Tensor, annotation: str) -> torch.Tensor:
    return torch.empty_like(x)


@_comm_backward.register_fake
def _(grad: torch.Tensor, annotation: str) -> torch.Tensor:
    return torch.empty_like(grad)


def _save(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, str], output: object) -> None:
    ctx.annotation = inputs[1]  # type: ignore[attr-defined]


def _differentiate(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return _comm_backward(grad, ctx.annotation), None  # type: ignore[attr-defined]


_comm.register_autograd(_differentiate, setup_context=_save)


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


def is_marker(op: str) -> bool:
    """Whether the row operator is a marker, of the forward or the backward half."""
    return op in (COMM, COMM_BACKWARD)
