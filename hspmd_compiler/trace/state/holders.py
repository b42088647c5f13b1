"""Places in Python that hold values from one step to the next: each can be read, and left as it was."""

from __future__ import annotations

import pickle
import random
import sys
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence
from dataclasses import dataclass
from types import CellType, GeneratorType
from typing import Any

from torch import nn

Contents = dict[object, object]
"""What is held, by name, key or place."""
LONG = 10_000
"""Of longer containers only the length is followed."""
WHOLE = ""
"""The key of what is one value."""


@dataclass(frozen=True, slots=True, eq=False)
class StateHolder(ABC):
    """path: for people. owner: the module that it belongs to, where it is a part of one."""

    path: str
    owner: nn.Module | None = None

    @abstractmethod
    def read(self) -> Contents:
        """What it holds now, in a dict of its own."""

    def write(self, contents: Mapping[object, object]) -> None:
        """Hold this again; nothing where it can't be done."""
        return

    def at(self, key: object) -> str:
        """The place of one value, for people."""
        return self.path

    def is_part(self, name: str) -> bool:
        """Whether it is one of the dicts that PyTorch keeps in a module, such as `_buffers`."""
        return False


@dataclass(frozen=True, slots=True, eq=False)
class DictEntries(StateHolder):
    """A dict. names: the keys in question, all if None. dotted: they are names of attributes.

    derived: keys that follow from others, and are left to whoever keeps them so.
    """

    values: MutableMapping[Any, object] | None = None
    names: frozenset[str] | None = None
    dotted: bool = False
    derived: frozenset[str] = frozenset()

    def read(self) -> Contents:
        values = self.values or {}
        if self.names is not None:
            return {name: values[name] for name in self.names if name in values}
        if len(values) > LONG:
            return {WHOLE: len(values)}
        return {key: value for key, value in values.items() if key not in self.derived}

    def write(self, contents: Mapping[object, object]) -> None:
        values = self.values
        if values is None or WHOLE in contents:
            return
        for key in [k for k in self.read() if k not in contents]:
            del values[key]
        for key, value in contents.items():
            if key not in values or values[key] is not value:
                values[key] = value

    def at(self, key: object) -> str:
        if not self.dotted:
            return f"{self.path}[{key!r}]"
        return f"{self.path}.{key}" if self.path else str(key)

    def is_part(self, name: str) -> bool:
        return self.owner is not None and self.values is vars(self.owner).get(name)


@dataclass(frozen=True, slots=True, eq=False)
class Listed(StateHolder):
    """A list or a deque."""

    values: MutableSequence[object] | deque[object] | None = None

    def read(self) -> Contents:
        values = () if self.values is None else self.values
        return {WHOLE: len(values)} if len(values) > LONG else dict(enumerate(values))

    def write(self, contents: Mapping[object, object]) -> None:
        if self.values is not None and WHOLE not in contents:
            self.values.clear()
            self.values.extend(contents.values())

    def at(self, key: object) -> str:
        return f"{self.path}[{key}]"


@dataclass(frozen=True, slots=True, eq=False)
class Elements(StateHolder):
    """A set."""

    values: set[object] | None = None

    def read(self) -> Contents:
        values = self.values or set()
        return {WHOLE: len(values) if len(values) > LONG else set(values)}

    def write(self, contents: Mapping[object, object]) -> None:
        whole = contents.get(WHOLE)
        if self.values is not None and isinstance(whole, set):
            self.values.clear()
            self.values.update(whole)


@dataclass(frozen=True, slots=True, eq=False)
class Attributes(StateHolder):
    """Attributes of a class, or of an object without a dict."""

    target: object = None

    def read(self) -> Contents:
        if isinstance(self.target, type):
            return {k: v for k, v in vars(self.target).items() if not k.startswith("__")}
        return {name: getattr(self.target, name) for name in slots_of(self.target)}

    def write(self, contents: Mapping[object, object]) -> None:
        now = self.read()
        for name in now.keys() - contents.keys():
            delattr(self.target, str(name))
        for name, value in contents.items():
            if name not in now or now[name] is not value:
                setattr(self.target, str(name), value)

    def at(self, key: object) -> str:
        return f"{self.path}.{key}"


def slots_of(target: object) -> Iterator[str]:
    """Names of the attributes that an object without a dict has."""
    for kind in type(target).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else tuple(slots)
        yield from (name for name in names if hasattr(target, name))


@dataclass(frozen=True, slots=True, eq=False)
class ClosureCell(StateHolder):
    """A variable of a function around another one."""

    cell: CellType | None = None

    def read(self) -> Contents:
        try:
            return {} if self.cell is None else {WHOLE: self.cell.cell_contents}
        except ValueError:  # it is empty
            return {}

    def write(self, contents: Mapping[object, object]) -> None:
        if self.cell is not None and WHOLE in contents:
            self.cell.cell_contents = contents[WHOLE]


@dataclass(frozen=True, slots=True, eq=False)
class Moving(StateHolder):
    """An iterator or a generator of random numbers, which can't be put back."""

    target: object = None

    def read(self) -> Contents:
        return {WHOLE: Position(position_of(self.target))}


@dataclass(frozen=True, slots=True)
class Position:
    """How far an iterator, or a generator of numbers, has come."""

    state: object

    def __repr__(self) -> str:
        return "one state"


def moves(value: object) -> bool:
    """Whether it is an iterator of Python's own, a generator of random numbers, or an array of NumPy."""
    numpy: Any = sys.modules.get("numpy")
    iterates = hasattr(type(value), "__next__") and type(value).__module__ in ("builtins", "itertools")
    of_numpy = numpy is not None and isinstance(value, (numpy.random.Generator, numpy.ndarray))
    return iterates or of_numpy or isinstance(value, random.Random)


def position_of(value: Any) -> object:
    """Equal as long as nothing was taken, or written."""
    numpy: Any = sys.modules.get("numpy")
    if isinstance(value, random.Random):
        return value.getstate()
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return repr(value.bit_generator.state)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return value.tobytes() if value.size <= LONG and value.dtype != object else value.size
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        return None if frame is None else (frame.f_lasti, _numbers(frame.f_locals))
    return _stored(value)


def _numbers(variables: Mapping[str, object]) -> str:
    return repr({k: v for k, v in variables.items() if isinstance(v, (int, float, str))})


def _stored(iterator: object) -> object:
    """What an iterator of Python's would be stored as; its own words where it can't be."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pickle.dumps(iterator)
    except Exception:  # whatever it goes over
        return repr(iterator)


def module_states() -> Contents:
    """States of the random numbers that Python and NumPy draw without a generator."""
    found: Contents = {"random numbers of Python": Position(random.getstate())}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        _, key, place, *_ = numpy.random.get_state()
        found["random numbers of NumPy"] = Position((key.tobytes(), place))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Randomness(StateHolder):
    """Random numbers that Python and NumPy draw for anybody; where forward goes on is its own matter."""

    def read(self) -> Contents:
        return module_states()

    def at(self, key: object) -> str:
        return str(key)
