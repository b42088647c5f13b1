"""Has tracing write operators out in our way: private doors of torch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch._C import DispatchKey

Decompositions = Mapping[torch._ops.OpOverload, Callable[..., object]]
"""What operators are made of: functions with their arguments."""


@contextmanager
def written_out(own: Decompositions) -> Iterator[None]:
    """Inside, tracing writes these operators out in our way instead of PyTorch's."""
    before = {op: op.py_kernels.get(_traced_at(op)) for op in own}
    try:
        for op, made in own.items():
            _set_kernel(op, made)
        yield
    finally:
        for op, kernel in before.items():
            _set_kernel(op, kernel)


def _set_kernel(op: torch._ops.OpOverload, kernel: Callable[..., object] | None) -> None:
    op.py_kernels.pop(_traced_at(op), None)
    if kernel is not None:
        op.py_kernels[_traced_at(op)] = kernel
    op._dispatch_cache.clear()


def _traced_at(op: torch._ops.OpOverload) -> DispatchKey:
    """Where PyTorch asks first how an operator is written out."""
    composite = DispatchKey.CompositeImplicitAutograd
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(op._name, composite)
    return composite if is_composite else DispatchKey.Autograd


def written_out_by_torch(op: torch._ops.OpOverload, *args: object, **kwargs: object) -> object:
    """An operator that consists of others, as PyTorch writes it out, inside of `written_out` too."""
    return op._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def before_ours(op: torch._ops.OpOverload, *args: object) -> object:
    """An operator as PyTorch calls it, inside of `written_out` too."""
    ours = op.py_kernels.get(_traced_at(op))
    _set_kernel(op, None)
    try:
        return op(*args)
    finally:
        _set_kernel(op, ours)
