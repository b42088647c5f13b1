"""When two masks are the same: one tensor, or the same comparisons of the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn import Parameter

_KEYED = """
    eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not
    bitwise_xor and or xor invert view reshape flatten squeeze unsqueeze transpose contiguous detach bool
    long int to getitem isnan isfinite expand
"""
KEYED = frozenset(_KEYED.split())
"""Functions whose result follows from their arguments."""
PLAIN = (Tensor, Parameter, FakeTensor, FunctionalTensor)
MaskKey = tuple[object, ...]


def plain_name(func: Callable[..., Any]) -> str:
    """What a function of torch is called, `add` for `Tensor.__add__`; `get shape` for an attribute."""
    name = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__"):
        return f"{name.strip('_')} {getattr(getattr(func, '__self__', None), '__name__', '')}"
    return str(name.strip("_") if name.startswith("__") else name)


@dataclass(slots=True)
class MaskKeys:
    """How each tensor of a forward pass was made, as far as that is known."""

    _made: dict[int, tuple[Tensor, int, MaskKey]] = field(default_factory=dict)  # by id: tensor, version, key

    def of(self, tensor: Tensor) -> MaskKey:
        """Equal for tensors of equal elements."""
        held = self._made.get(id(tensor))
        if held is not None and held[1] == tensor._version:
            return held[2]
        key = ("tensor", id(tensor), tensor._version)
        self._made[id(tensor)] = tensor, tensor._version, key
        return key

    def note(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
        """Keep how a tensor was made: by the function of this name."""
        if name not in KEYED or type(made) not in PLAIN or any(made is given for given in args):
            return
        try:
            key = (name, self._part(args), self._part(tuple(sorted(kwargs.items()))))
            hash(key)
        except TypeError:
            return
        self._made[id(made)] = made, made._version, key

    def _part(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if type(value) not in PLAIN:
                raise TypeError("how a tensor of another kind was made is not followed")
            return self.of(value)
        if isinstance(value, (tuple, list)):
            return tuple(self._part(item) for item in value)
        if isinstance(value, slice):
            return "slice", value.start, value.stop, value.step
        return type(value), value
