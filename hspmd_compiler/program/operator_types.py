"""Types of operators' results: each is computed once per device kind, without data, for operands of one type.

An operator of PyTorch may give other types on another kind of device: the statistics of a layer norm in
bfloat16 are bfloat16 on a CPU and float32 on CUDA. A fake tensor says what its device does, present or not.
Kernels of ours give the same types on all kinds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeGuard, cast
from unittest.mock import patch

import torch
from torch import Tensor

from ..base.devices import DeviceKind
from ..errors import HspmdError, InternalError
from .arguments import map_leaves
from .interpret import RowCall, compute_row, not_computed
from .operator_names import ATEN_NAME
from .program import Value
from .quick.table import MadeTensor, TypeAnswer

Typed = tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]
"""(shape, element type, strides)."""
TypedResult = Typed | tuple[Typed | None, ...]

ABSENT = "PyTorch is not linked with support for"
"""What PyTorch says in `contiguous` of a fake tensor on a device that it was built without."""


class Memory:
    """The memory of a value that is not computed: an identity and its bytes."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


@dataclass(frozen=True, slots=True)
class Sketch:
    """A tensor without data: views of one memory share it."""

    typed: Typed
    memory: Memory


SketchResult = Sketch | tuple[Sketch | None, ...]


class OperatorBook:
    """Results by operator, literals and operand types. Rows that say the same share one number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._answers: dict[tuple[object, ...], TypeAnswer[Typed]] = {}
        from torch._subclasses import FakeTensorMode  # late: it takes as long as the rest of torch

        self._mode = FakeTensorMode()

    @property
    def computed(self) -> int:
        """Operators that were really computed."""
        return len(self._answers)

    def number(self, call: RowCall) -> int:
        """Equal for rows of one operator with the same literals, whatever values they read."""
        names = {value: index for index, value in enumerate(call.reads)}
        # with operands counted from 0 the text says all that the result depends on
        renamed = map_leaves(
            (call.args, call.kwargs), lambda leaf: Value(names[leaf.id]) if isinstance(leaf, Value) else leaf
        )
        text = f"{call.row.op} {renamed!r}"
        return self._numbers.setdefault(text, len(self._numbers))

    def result(
        self, number: int, call: RowCall, values: Mapping[int, SketchResult], device: str
    ) -> SketchResult:
        """What a row makes of what it reads, on one kind of device."""
        operands = {value: values[value] for value in call.reads}
        types = {value: _types(result) for value, result in operands.items()}
        kind = device if ATEN_NAME.fullmatch(call.row.op) else DeviceKind.CPU.value
        key = (kind, number, *types.values())
        if key not in self._answers:
            with self._mode:
                self._answers[key] = _answer_on(call, types, kind)
        return _placed(self._answers[key], list(_tensors(operands.values())))


def _types(result: SketchResult) -> TypedResult:
    if isinstance(result, Sketch):
        return result.typed
    return tuple(None if item is None else item.typed for item in result)


def _tensors(results: Iterable[SketchResult]) -> Iterator[Sketch]:
    for result in results:
        if isinstance(result, Sketch):
            yield result
        else:
            yield from (item for item in result if item is not None)


def _answer_on(call: RowCall, operands: Mapping[int, TypedResult], kind: str) -> TypeAnswer[Typed]:
    """On a kind of device; as a CPU has it where PyTorch's sketch of the operator wants it there."""
    try:
        return answer_of(call, operands, kind)
    except InternalError as error:
        if kind == DeviceKind.CPU.value or ABSENT not in str(error.__cause__):
            raise
        return answer_of(call, operands, DeviceKind.CPU.value)


def answer_of(call: RowCall, operands: Mapping[int, TypedResult], device: str) -> TypeAnswer[Typed]:
    """What a row makes of operands of these types; an InternalError where its operator refuses them.

    device: `meta`, or under FakeTensorMode one that need not be there.
    """
    fakes: list[Tensor] = []
    values = {number: _without_data(result, fakes, device) for number, result in operands.items()}
    try:
        with quiet_fakes():
            result = compute_row(call, values, device)
    except HspmdError:
        raise
    except Exception as error:  # whatever an artifact's arguments make of an operator
        raise not_computed(call, values, error) from error
    single = isinstance(result, Tensor)
    if not single and not (isinstance(result, (tuple, list)) and all(map(_is_result, result))):
        raise InternalError(f"{call.row.op} gives no tensor", at=f"v{call.row.out.id}")
    return TypeAnswer(tuple(_recorded((result,) if single else result, fakes)), single)


def quiet_fakes() -> AbstractContextManager[object]:
    """In this block PyTorch logs no traceback of an operator that fails: the error is told in our words."""
    return patch.object(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True)


def _is_result(item: object) -> bool:
    return item is None or isinstance(item, Tensor)


def _without_data(result: TypedResult, fakes: list[Tensor], device: str) -> Any:
    if is_typed(result):
        shape, dtype, stride = result
        fakes.append(torch.empty_strided(shape, stride, dtype=dtype, device=device))
        return fakes[-1]
    several = cast("tuple[Typed | None, ...]", result)
    return tuple(None if item is None else _without_data(item, fakes, device) for item in several)


def _recorded(
    results: Sequence[Tensor | None], fakes: Sequence[Tensor]
) -> Iterator[MadeTensor[Typed] | None]:
    operands = {storage_of(fake): index for index, fake in reversed(list(enumerate(fakes)))}
    new: dict[int, int] = {}
    for result in results:
        if result is None:
            yield None
            continue
        storage = storage_of(result)
        number = new.setdefault(storage, len(new))
        size = result.untyped_storage().nbytes()
        yield MadeTensor(typed_of(result), operands.get(storage, -1), number, size)


def _placed(answer: TypeAnswer[Typed], operands: Sequence[Sketch]) -> SketchResult:
    new: dict[int, Memory] = {}

    def place(made: MadeTensor[Typed]) -> Sketch:
        if made.shared >= 0:
            return Sketch(made.typed, operands[made.shared].memory)
        if made.memory not in new:
            new[made.memory] = Memory(made.size)
        return Sketch(made.typed, new[made.memory])

    placed = tuple(None if made is None else place(made) for made in answer.made)
    first = placed[0] if answer.single else None
    return placed if first is None else first


def is_typed(result: TypedResult) -> TypeGuard[Typed]:
    """Whether it is the type of one tensor."""
    return len(result) == 3 and isinstance(result[1], torch.dtype)


def typed_of(value: Tensor) -> Typed:
    """Shape, element type and strides."""
    return tuple(value.shape), value.dtype, tuple(value.stride())


def span(typed: Typed) -> int:
    """Bytes of the smallest memory that a value of this type lies in."""
    shape, dtype, stride = typed
    if 0 in shape:
        return 0
    return (1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))) * dtype.itemsize


def storage_of(tensor: Tensor) -> int:
    """Identity of a tensor's memory."""
    return int(tensor.untyped_storage()._cdata)
