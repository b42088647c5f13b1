"""Calls of an operator made from its rule alone: letters get lengths, literals come from the schema."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from ...ir.graph import Ref
from ...program.kernels.kernels import kernel
from ...program.operator_names import known_operator
from ...rules.op_rule import OP_RULES, REST, Dims, OpRule
from .split_operands import Operand

DRAWS = 60
LENGTHS = (2, 5)
MOST_LEADING_DIMS = 3
LITERALS: dict[str, object] = {
    "number": 0.7,
    "Scalar": 0.7,
    "float": 0.7,
    "bool": False,
    "int": 1,
    "int[]": (1,),
    "ScalarType": torch.float64,
}
BOUND = ("int", "size")
"""What indexes lie below, as `places` are."""
TENSORS = ("Tensor", "Optional[Tensor]")
Maker = Callable[[tuple[int, ...]], Tensor]
Take = Callable[[Operand], Ref]


def numbers(shape: tuple[int, ...]) -> Tensor:
    """Random numbers that sums may consist of."""
    return torch.randn(shape, dtype=torch.float64)


def truths(shape: tuple[int, ...]) -> Tensor:
    return torch.rand(shape) < 0.5


def places(shape: tuple[int, ...]) -> Tensor:
    """Indexes that fit every dim of a drawn length."""
    return torch.randint(0, LENGTHS[0], shape)


@dataclass(frozen=True)
class DrawnCall:
    """Shapes of tensors and literals, in the order of the schema; make: values that the operator takes."""

    op: str
    arguments: tuple[object, ...]
    make: Maker

    def on(self, take: Take) -> tuple[object, ...]:
        """The arguments, with operands in the place of shapes."""
        sums = self.make is numbers
        return tuple(
            take(Operand(item.sizes, self.make, sample=None, linear=sums))
            if isinstance(item, CallTensor)
            else item
            for item in self.arguments
        )


@dataclass(frozen=True)
class CallTensor:
    """Where a call takes a tensor."""

    sizes: tuple[int, ...]


def drawn_calls(op: str, count: int, seed: int) -> Iterator[DrawnCall]:
    """Calls that the operator itself takes; none where its literals can't be guessed from the schema."""
    rule, rng = OP_RULES[op], random.Random(seed)
    if rule.by_call:
        return
    for _ in range(DRAWS):
        if count <= 0:
            return
        arguments = _Draw(rule, rng).arguments()
        made = next((make for make in (numbers, truths, places) if _is_taken(op, arguments, make)), None)
        if made is not None:
            count -= 1
            yield DrawnCall(op, arguments, made)


@dataclass
class _Draw:
    """Lengths of one call's letters."""

    rule: OpRule
    rng: random.Random
    lengths: dict[str, int] = field(default_factory=dict)
    leading: list[int] = field(default_factory=list)

    def arguments(self) -> tuple[object, ...]:
        self.leading = [self._length() for _ in range(self.rng.randint(1, MOST_LEADING_DIMS))]
        made: list[object] = []
        tensors = 0
        for item in kernel_schema(self.rule.op):
            if item.kwarg_only:
                break
            if str(item.type) in TENSORS:
                dims = self._dims(tensors)
                tensors += 1
                made.append(None if dims is None else CallTensor(self._sizes(dims)))
            elif item.has_default_value() and not self._is_named(item.name):
                break
            else:
                made.append(self._literal(item))
        return tuple(made)

    def _dims(self, place: int) -> Dims | None:
        operands = self.rule.operands
        if self.rule.every:
            return operands[0]
        return operands[place] if place < len(operands) else None

    def _sizes(self, dims: Dims) -> tuple[int, ...]:
        sizes: list[int] = []
        for names in dims:
            if names == (REST,):
                sizes += self.leading
            else:
                sizes.append(prod([self.lengths.setdefault(name, self._length()) for name in names]))
        return tuple(sizes)

    def _is_named(self, name: str) -> bool:
        along = self.rule.along
        return (along is not None and along.argument == name) or any(name == n for _, n in self.rule.lengths)

    def _literal(self, item: Any) -> object:
        kind = str(item.real_type)
        if self.rule.along is not None and item.name == self.rule.along.argument:
            dim = self.rng.randrange(len(self.leading))
            return (dim,) if "[]" in kind or "List" in kind else dim
        for letter, name in self.rule.lengths:
            if name == item.name:
                return self.lengths[letter]
        if (kind, item.name) == BOUND:
            return LENGTHS[0]
        return LITERALS.get(kind.removesuffix("?"), 1)

    def _length(self) -> int:
        return self.rng.randint(*LENGTHS)


def kernel_schema(op: str) -> list[Any]:
    """The arguments of an operator, from its schema."""
    return list(known_operator(op)._schema.arguments)


def _is_taken(op: str, arguments: tuple[object, ...], make: Maker) -> bool:
    """Whether the operator computes with such operands; it says no by any error."""
    try:
        kernel(op)(*(make(item.sizes) if isinstance(item, CallTensor) else item for item in arguments))
    except Exception:  # whatever an operator raises, it does not take this call
        return False
    return True
