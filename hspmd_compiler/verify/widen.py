"""Doubling the precision on both sides: of a program's literals, and of what eager PyTorch computes.

Models cast to float32 inside (norms, rotary embeddings, logits). For a proof in float64 these casts
are widened in the program and, under a dispatch mode, in the eager model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ..base.comm_plan import CommStep
from ..program.arguments import map_leaves
from ..program.program import ClassProgram, DType, LocalRow, Program, RankProgram
from ..trace.capture import DispatchRecorder
from ..trace.kept_arguments import kept_arguments

WIDER = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
WIDER_NAMES = {str(a).removeprefix("torch."): str(b).removeprefix("torch.") for a, b in WIDER.items()}
RMS_NORMS = (torch.rms_norm, torch.nn.functional.rms_norm)
GROUPED_PRODUCTS = (torch._grouped_mm, torch.nn.functional.grouped_mm)
RMS_EPS = 3
"""The place of eps among the arguments of both."""


def widen_program(program: Program) -> Program:
    """The program with every floating type double."""
    return replace(
        program,
        inputs={key: (shape, _wide(dtype)) for key, (shape, dtype) in program.inputs.items()},
        classes={name: _wide_class(shared) for name, shared in program.classes.items()},
        ranks=[_wide_rank(rank) for rank in program.ranks],
    )


def widened(tensor: Tensor) -> Tensor:
    """The same numbers in double precision; what is no fraction stays."""
    return tensor.to(WIDER.get(tensor.dtype, tensor.dtype))


class NarrowNumbers(TorchFunctionMode):
    """Python numbers are those of the type that the model was traced in: an RMSNorm without an eps takes
    that of the type, and tensors made from numbers round them to it. Products of groups, as of experts, are
    written out, for PyTorch has none in double precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Called by PyTorch for each function."""
        given = kwargs or {}
        if func in RMS_NORMS and _eps(args, given) is None:
            return func(*args[:RMS_EPS], **(given | {"eps": torch.finfo(self.dtype).eps}))
        if func is torch.tensor:
            with default_type(self.dtype):
                made = torch.tensor(*args, **given)
            return made.to(WIDER.get(made.dtype, made.dtype))
        if func in GROUPED_PRODUCTS:
            return _grouped_product(*args, **given)
        return func(*args, **given)


def _grouped_product(
    rows: Tensor,
    weights: Tensor,
    offs: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """What PyTorch computes in single precision alone: each group of rows times its matrix, one by one."""
    ends = [0, *offs.tolist(), len(rows)]
    groups = [rows[low:high] for low, high in pairwise(ends)]
    made = [group @ matrix for group, matrix in zip(groups, weights, strict=False)]
    behind = rows.new_zeros((len(groups[-1]), weights.shape[2]))
    return torch.cat([*made, behind]) if bias is None else torch.cat([*made, behind]) + bias


@contextmanager
def wide_casts() -> Iterator[None]:
    """Eager code in this block computes in double precision throughout."""
    narrow = torch.get_default_dtype()
    with default_type(torch.float64), kept_arguments(), DispatchRecorder(_wide_call), NarrowNumbers(narrow):
        yield


@contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    """In this block whole numbers become numbers of `dtype` where an operator makes fractions of them."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _wide_call(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Every narrow floating type that eager code asks for, or brings from elsewhere, is double instead."""
    widen = _wide_type if func._schema.is_mutable else _wide_value
    wide_args, wide_kwargs = tree_map(widen, (args, kwargs))
    return func(*wide_args, **wide_kwargs)


def _eps(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    return args[RMS_EPS] if len(args) > RMS_EPS else kwargs.get("eps")


def _wide_type(item: object) -> object:
    return WIDER.get(item, item) if isinstance(item, torch.dtype) else item


def _wide_value(item: object) -> object:
    """Also tensors that are no parameter or batch, such as weights of classes. Autograd casts others."""
    if isinstance(item, torch.Tensor) and item.dtype in WIDER and not item.requires_grad:
        return item.to(WIDER[item.dtype])
    return _wide_type(item)


def _wide(dtype: str) -> str:
    return WIDER_NAMES.get(dtype, dtype)


def _wide_leaf(leaf: object) -> object:
    return DType(_wide(leaf.name)) if isinstance(leaf, DType) else leaf


def _wide_class(shared: ClassProgram) -> ClassProgram:
    segments = [replace(each, rows=[_wide_row(row) for row in each.rows]) for each in shared.segments]
    return replace(shared, segments=segments)


def _wide_row(row: LocalRow) -> LocalRow:
    args, kwargs = map_leaves((row.args, row.kwargs), _wide_leaf)
    return replace(row, args=args, kwargs=kwargs)


def _wide_step(step: CommStep) -> CommStep:
    return replace(step, dtype=_wide(step.dtype))


def _wide_rank(rank: RankProgram) -> RankProgram:
    return replace(
        rank,
        literals=[map_leaves(literal, _wide_leaf) for literal in rank.literals],
        comms=[_wide_step(step) for step in rank.comms],
        transfers=[_wide_step(step) for step in rank.transfers],
        shards=[replace(shard, dtype=_wide(shard.dtype), compute="") for shard in rank.shards],
        grad_buckets=[replace(bucket, dtype=_wide(bucket.dtype)) for bucket in rank.grad_buckets],
        param_buckets=[replace(bucket, dtype=_wide(bucket.dtype)) for bucket in rank.param_buckets],
    )
