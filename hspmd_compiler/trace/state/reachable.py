"""Finds what a forward pass can reach in Python and change there.

Attributes of modules and of objects that they hold, containers, classes, variables around functions,
defaults of arguments, and the globals that a user's functions name. Libraries (torch, NumPy, Python's own
and transformers) are taken not to keep anything from one step to the next by themselves.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from .holders import (
    Attributes,
    ClosureCell,
    DictEntries,
    Elements,
    Listed,
    Moving,
    Randomness,
    StateHolder,
    moves,
    slots_of,
)

MOST = 20_000
"""Holders outside of modules that are followed."""
LIBRARIES = frozenset(sys.stdlib_module_names) | {
    "torch",
    "numpy",
    "transformers",
    "hspmd_compiler",
    "_pytest",
}
PARTS = ("_parameters", "_buffers", "_modules")
"""Dicts of a module whose entries are named like its attributes."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def holders_of(model: nn.Module) -> list[StateHolder]:
    """All that forward can reach, each once, the model's own first."""
    return [Randomness(""), *_Walk().from_model(model)]


def derived_attributes(module: nn.Module) -> frozenset[str]:
    """What modules of PyTorch make anew from their parameters whenever these are other objects."""
    return (
        frozenset(("_flat_weights", "_flat_weight_refs")) if isinstance(module, nn.RNNBase) else frozenset()
    )


def is_users(name: str | None) -> bool:
    """Whether a module of Python is the user's."""
    return (name or "builtins").partition(".")[0] not in LIBRARIES


class _Walk:
    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.named: dict[int, set[str]] = {}  # globals, by id of their dict
        self.kept: list[object] = []  # so that no id is given twice
        self.found: list[StateHolder] = []
        self.later: deque[tuple[object, str]] = deque()

    def from_model(self, model: nn.Module) -> list[StateHolder]:
        """First the modules, named as PyTorch names them, then what they reach."""
        self._modules(model, "")
        most = len(self.found) + MOST
        while self.later and len(self.found) < most:
            value, path = self.later.popleft()
            if isinstance(value, nn.Module):
                self._modules(value, path)
            elif isinstance(value, type):
                self._class(value)
            elif self._is_new(value):
                self._visit(value, path)
        return self.found

    def _is_new(self, value: object) -> bool:
        if isinstance(value, PLAIN) or id(value) in self.seen:
            return False
        self.seen.add(id(value))
        self.kept.append(value)
        return True

    def _modules(self, root: nn.Module, path: str) -> None:
        for inner, module in root.named_modules():
            self._module(module, ".".join(filter(None, (path, inner))))

    def _module(self, module: nn.Module, path: str) -> None:
        if not self._is_new(module):
            return
        derived = derived_attributes(module)
        self.found.append(DictEntries(path, module, vars(module), dotted=True, derived=derived))
        for name, value in vars(module).items():
            if name in derived:
                continue
            where = f"{path}.{name}" if path else name
            if name in PARTS or (isinstance(value, dict) and name.endswith("_hooks")):
                self._is_new(value)
                inside = path if name in PARTS else where
                self.found.append(DictEntries(inside, module, value, dotted=name in PARTS))
                value = () if name in PARTS else tuple(value.values())
            self.later.append((value, where))
        self._class(type(module))

    def _visit(self, value: object, path: str) -> None:
        match value:
            case torch.Tensor() | ModuleType():
                return
            case dict():
                self.found.append(DictEntries(path, None, value))
                self._all((item, f"{path}[{key!r}]") for key, item in _short(value))
            case list() | deque():
                self.found.append(Listed(path, None, value))
                self._all((item, f"{path}[{i}]") for i, item in _short(value))
            case set():
                self.found.append(Elements(path, None, value))
            case tuple() | frozenset():
                self._all((item, f"{path}[{i}]") for i, item in enumerate(value))
            case FunctionType():
                self._function(value, path)
            case MethodType() | staticmethod() | classmethod():
                self._all([(value.__func__, path), (getattr(value, "__self__", None), path)])
            case property():
                self._all((part, path) for part in (value.fget, value.fset))
            case functools.partial():
                self._all([(value.func, path), (value.args, path), (value.keywords, path)])
            case _:
                self._object(value, path)

    def _all(self, values: Any) -> None:
        self.later.extend(values)

    def _object(self, value: object, path: str) -> None:
        kind = type(value)
        if moves(value):
            self.found.append(Moving(path, None, value))
        elif hasattr(value, "__wrapped__"):
            self.later.append((value.__wrapped__, path))
        elif is_users(kind.__module__) or kind.__module__ in ("collections", "weakref") or _is_held(value):
            if hasattr(value, "__dict__"):
                self.found.append(DictEntries(path, None, vars(value), dotted=True))
                self._all((item, f"{path}.{name}") for name, item in vars(value).items())
            if any(True for _ in slots_of(value)):
                self.found.append(Attributes(path, None, value))
                self._all((getattr(value, name), f"{path}.{name}") for name in slots_of(value))
            self._class(kind)

    def _class(self, kind: type) -> None:
        for base in kind.__mro__:
            if is_users(base.__module__) and self._is_new(base):
                self.found.append(Attributes(base.__qualname__, None, base))
                for name, value in vars(base).items():
                    self.later.append((value, f"{base.__qualname__}.{name}"))

    def _function(self, function: FunctionType, path: str) -> None:
        if not is_users(function.__module__):
            return
        name = function.__qualname__
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            holder = ClosureCell(f"{variable} around {name}", None, cell)
            self.found.append(holder)
            self._all((value, holder.path) for value in holder.read().values())
        self.found.append(DictEntries(name, None, function.__dict__, dotted=True))
        self._all((value, f"the defaults of {name}") for value in _defaults(function))
        self._globals(function.__globals__, names_in(function.__code__))

    def _globals(self, space: dict[str, object], names: frozenset[str]) -> None:
        known = self.named.setdefault(id(space), set())
        named = frozenset(name for name in names if name in space and name not in known)
        known |= named
        place = str(space.get("__name__", ""))
        if named:
            self.found.append(DictEntries(place, None, space, named, dotted=True))
        for name in named:
            value = space[name]
            if isinstance(value, ModuleType):
                if is_users(value.__name__):
                    self._globals(vars(value), names)
            else:
                self.later.append((value, f"{place}.{name}"))


def _is_held(value: object) -> bool:
    """Whether an object of a library is plain data that a model may write into."""
    library = type(value).__module__.partition(".")[0]
    return isinstance(value, SimpleNamespace) or library == "transformers"


def _short(values: Any) -> Iterator[tuple[object, object]]:
    """Keys and values of a container, none of a long one."""
    if len(values) <= MOST:
        yield from list(values.items() if isinstance(values, Mapping) else enumerate(values))


def _defaults(function: FunctionType) -> tuple[object, ...]:
    return (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())


@functools.cache
def names_in(code: CodeType) -> frozenset[str]:
    """Names that a function, and those in it, look up."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*inner)
