"""What one forward pass left otherwise in a place of Python, and how to leave it so for the next step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import nn

from .holders import WHOLE, Contents, DictEntries, Elements, Listed, Position, StateHolder
from .kept_tensors import stand_in_of
from .reachable import PLAIN

ABSENT = "nothing"
DEEPEST = 8
MANY = 8
BUFFERS, PARAMETERS, MODULES = "_buffers", "_parameters", "_modules"
Refusal = tuple[str, str, str]
"""Where, what forward does there, and the way out."""
HolderChange = tuple[StateHolder, Contents, Contents]
"""Of a holder, what it held before and after."""


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What one holder held before and after, where that differs. keys: of what differs.

    known: tensors that were there before, and the model's own, as they were in this pass: an export puts
    others in their places, and takes them away again.
    """

    holder: StateHolder
    before: Contents
    after: Contents
    keys: tuple[object, ...]
    known: Mapping[int, torch.Tensor]

    def make(self) -> None:
        """Leave it so again, with tensors that no model has."""
        left = {key: self._stand_in(key) for key in self.after}
        namespace = self._late_buffers()
        if namespace is not None:
            late = [key for key in self.keys if self.before.get(key) is None]
            vars(namespace).update({str(key): left.pop(key) for key in late if key in left})
        self.holder.write({**self.before, **left} if namespace is not None else left)

    def undo(self) -> None:
        """Leave it as it was before."""
        namespace = self._late_buffers()
        if namespace is not None:
            for key in self.keys:
                vars(namespace).pop(str(key), None)
        self.holder.write(self.before)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Where, and what before and after, for people."""
        if _is_container(self.holder) and _is_plain((self.before, self.after)):
            yield self.holder.path, _both(_whole(self.holder, self.before), _whole(self.holder, self.after))
            return
        for key in self.keys[:MANY]:
            before, after = self.before.get(key, ABSENT), self.after.get(key, ABSENT)
            yield self.holder.at(key), _both(shown(before), shown(after))

    def places(self) -> list[str]:
        """Where, of each value."""
        return [self.holder.at(key) for key in self.keys]

    def kept(self) -> list[torch.Tensor]:
        """Tensors that were not there before."""
        found = tensors_in(tuple(self.after.get(key) for key in self.keys))
        return [tensor for tensor in found if id(tensor) not in self.known]

    @property
    def goes_on(self) -> bool:
        """Whether more than tensors differ: a number, a text, or how many there are."""
        held = ((self.before.get(key, ABSENT), self.after.get(key, ABSENT)) for key in self.keys)
        return any(_differ_in_numbers(before, after) for before, after in held)

    def _stand_in(self, key: object) -> object:
        value = self.after[key]
        return _with_stand_ins(value, self.known) if key in self.keys else value

    def without(self, is_settled: Callable[[Change, object], bool]) -> Change:
        """The same without some keys."""
        return replace(self, keys=tuple(key for key in self.keys if not is_settled(self, key)))

    def _late_buffers(self) -> nn.Module | None:
        """The module, where these are its buffers: those it got in forward are no buffers of the model."""
        return self.holder.owner if self.holder.is_part(BUFFERS) else None


def change_of(held: HolderChange, own: Mapping[int, torch.Tensor]) -> Change | None:
    """What is held otherwise than before, if anything is. own: tensors of the model."""
    holder, before, after = held
    keys = _differing(before, after)
    if not keys:
        return None
    known = {id(tensor): tensor for tensor in tensors_in(tuple(before.values()))}
    return Change(holder, before, after, keys, {**known, **own})


def _differing(before: Contents, after: Contents) -> tuple[object, ...]:
    keys = dict.fromkeys((*before, *after))
    return tuple(k for k in keys if not _same(before.get(k, ABSENT), after.get(k, ABSENT)))


def _same(one: object, other: object, deep: int = 0) -> bool:
    """Whether two values are the same: tensors and objects by identity, or of the same parts."""
    if one is other:
        return True
    if type(one) is not type(other) or deep > DEEPEST:
        return False
    if isinstance(one, (*PLAIN, Position, torch.dtype, torch.device, torch.Size)):
        return bool(one == other) or (one != one and other != other)
    parts = _parts(one), _parts(other)
    if parts[0] is None or parts[1] is None or parts[0].keys() != parts[1].keys():
        return False
    return all(_same(value, parts[1][key], deep + 1) for key, value in parts[0].items())


def _parts(value: object) -> Contents | None:
    """What a container, or a plain object, is made of; None of anything else."""
    if isinstance(value, (list, tuple, deque)):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return dict.fromkeys(value)
    if isinstance(value, (torch.Tensor, nn.Module, type)) or callable(value):
        return None
    return dict(vars(value).items()) if hasattr(value, "__dict__") else None


def _differ_in_numbers(one: object, other: object, deep: int = 0) -> bool:
    if one is other or isinstance(one, (torch.Tensor, Position)) or isinstance(other, torch.Tensor):
        return False
    if isinstance(one, PLAIN) or isinstance(other, PLAIN) or deep > DEEPEST:
        return not _same(one, other)
    parts = _parts(one), _parts(other)
    if parts[0] is None or parts[1] is None:
        return False
    if parts[0].keys() != parts[1].keys():
        return True
    return any(_differ_in_numbers(value, parts[1][key], deep + 1) for key, value in parts[0].items())


def tensors_in(value: object, deep: int = 0) -> list[torch.Tensor]:
    """All in nested containers and plain objects."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = None if isinstance(value, PLAIN) or deep > DEEPEST else _parts(value)
    return [tensor for part in (parts or {}).values() for tensor in tensors_in(part, deep + 1)]


def _with_stand_ins(value: object, known: Mapping[int, torch.Tensor], deep: int = 0) -> object:
    """The value with stand-ins for all tensors but the known ones, in containers of its own."""
    if isinstance(value, torch.Tensor):
        return value if id(value) in known else stand_in_of(value)
    if isinstance(value, PLAIN) or deep > DEEPEST:
        return value
    if isinstance(value, (list, deque)):
        made: list[object] | deque[object] = copy(value)
        made.clear()
        made.extend(_with_stand_ins(item, known, deep + 1) for item in value)
        return made
    if type(value) is tuple:
        return tuple(_with_stand_ins(item, known, deep + 1) for item in value)
    if isinstance(value, dict):
        held = copy(value)
        held.update({key: _with_stand_ins(item, known, deep + 1) for key, item in value.items()})
        return held
    if not tensors_in(value):
        return copy(value) if isinstance(value, set) else value
    return _object_with_stand_ins(value, known, deep)


def _object_with_stand_ins(value: object, known: Mapping[int, torch.Tensor], deep: int) -> object:
    parts = _parts(value)
    if parts is None or not hasattr(value, "__dict__"):
        return value
    made = copy(value)
    vars(made).update({str(name): _with_stand_ins(item, known, deep + 1) for name, item in parts.items()})
    return made


def _is_container(holder: StateHolder) -> bool:
    return isinstance(holder, (Listed, Elements)) or (isinstance(holder, DictEntries) and not holder.dotted)


def _is_plain(contents: object) -> bool:
    if isinstance(contents, (dict, tuple, list, set)):
        items = contents.values() if isinstance(contents, dict) else contents
        return all(_is_plain(item) for item in items)
    return isinstance(contents, PLAIN)


def _whole(holder: StateHolder, contents: Contents) -> str:
    if WHOLE in contents:
        return repr(contents[WHOLE])
    return repr(list(contents.values()) if isinstance(holder, Listed) else contents)


def _both(before: str, after: str) -> str:
    return f"{before} before, {after} after" if before != after else f"{before} before, another after"


def shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if value is ABSENT or value is None:
        return str(value)
    if _is_plain(value) or isinstance(value, Position):
        return repr(value)[:80]
    return f"a {type(value).__name__}"
