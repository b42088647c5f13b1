"""Changes in place as what they are to a graph: a new tensor in the memory of an old one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from ...program.operator_names import torch_operator
from ..tensor_memory import storage_key


def of_new_tensor(func: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The operator that makes anew what `func` writes into its first operand; None where there is none."""
    schema = func._schema
    written = [
        place
        for place, a in enumerate(schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    ]
    one = written == [0] and func.namespace == "aten" and len(schema.returns) == 1
    changes_view = torch.Tag.inplace_view in func.tags
    if not one or changes_view or not schema.name.endswith("_"):
        return None
    made = torch_operator(f"aten.{schema.name.removeprefix('aten::')[:-1]}.{func._overloadname}")
    return made if made is not None and _takes_the_same(func, made) else None


def _takes_the_same(func: torch._ops.OpOverload, made: torch._ops.OpOverload) -> bool:
    sides = ([(a.name, str(a.type)) for a in op._schema.arguments] for op in (func, made))
    return next(sides) == next(sides)


@dataclass(slots=True)
class Memories:
    """Tensors of a run by the memory that they lie in; all stay alive, so that none takes another's id."""

    _by_key: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    def add(self, tensor: torch.Tensor) -> int:
        """The key of its memory."""
        key = storage_key(tensor)
        self._by_key.setdefault(key, []).append(tensor)
        return key

    def sharing(self, tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, bool]]:
        """All in its memory, itself too, and whether each is the same elements in the same order."""
        own = _geometry(tensor)
        for other in self._by_key.get(storage_key(tensor), ()):
            yield other, _geometry(other) == own


def _geometry(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
