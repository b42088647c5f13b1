"""Anchors: behind each call of an unmodified model that makes a new value stands a marker with a name.

The name is the path of the module that calls and what it calls, `layers.0.add`, with a number behind the
second such call, `layers.0.add#2`; of PyTorch's own modules without others in them, such as Linear, the path
alone; of an input, its own. Views have no anchor, nor has what is changed in place: an anchor's value has
memory of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..ir.comm_marker import anchor
from ..ir.own_names import NUMBER
from .selection.mask_keys import PLAIN, plain_name
from .tensor_memory import storage_key

OF_TORCH = "torch.nn.modules."
OPENED = frozenset({functional.multi_head_attention_forward})
"""Functions of PyTorch that are many calls, each of which has an anchor."""

Inputs = dict[str, Tensor]


@contextmanager
def anchors_behind_calls(model: nn.Module, wanted: bool) -> Iterator[Callable[[Inputs], Inputs]]:
    """Inside, anchors stand behind calls of a model, where they are wanted; gives inputs theirs, too."""
    if not wanted:
        yield lambda inputs: inputs
        return
    anchors = Anchors()
    with anchors.watch(model), anchors:
        yield anchors.of_inputs


class Anchors(TorchFunctionMode):
    """Inside, calls are followed by anchors."""

    def __init__(self) -> None:
        super().__init__()
        self._running: list[tuple[str, bool]] = []
        self._counts: Counter[str] = Counter()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Called by PyTorch for each function."""
        given = kwargs or {}
        if func in OPENED:
            with self, patch.object(functional, "has_torch_function", lambda _: False):
                return func(*args, **given)
        result = func(*args, **given)
        if not _is_new(result, (*args, *given.values())):
            return result
        return anchor(result, self._name(plain_name(func)))

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        """Follow which module of a model runs."""
        hooks = []
        for path, module in model.named_modules():
            place = (path, _is_one_call(module) and bool(path))
            hooks.append(
                module.register_forward_pre_hook(lambda *_, place=place: self._running.append(place))
            )
            hooks.append(module.register_forward_hook(lambda *_: self._left(), always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def of_inputs(self, inputs: Inputs) -> Inputs:
        """The inputs, with anchors behind them."""
        return {name: anchor(value, self._numbered(name)) for name, value in inputs.items()}

    def _left(self) -> None:
        self._running.pop()

    def _name(self, call: str) -> str:
        path, is_one_call = self._running[-1] if self._running else ("", False)
        return self._numbered(path if is_one_call else f"{path}.{call}" if path else call)

    def _numbered(self, name: str) -> str:
        self._counts[name] += 1
        return name if self._counts[name] == 1 else f"{name}{NUMBER}{self._counts[name]}"


def _is_one_call(module: nn.Module) -> bool:
    """Whether a module is called by its own name: it is PyTorch's, and has no others."""
    return type(module).__module__.startswith(OF_TORCH) and next(module.children(), None) is None


def _is_new(result: Any, given: Iterable[Any]) -> bool:
    """Whether it is one tensor with a gradient, in memory of its own."""
    if type(result) not in PLAIN or not result.is_floating_point() or not result.requires_grad:
        return False
    tensors = list(_tensors(given))
    if result.dim() == 0 or any(not isinstance(tensor, PLAIN) for tensor in tensors):
        return False
    return storage_key(result) not in {storage_key(tensor) for tensor in tensors}


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)
