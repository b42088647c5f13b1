"""What a forward pass left otherwise in Python, and everything back as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from .cached_calls import Caches, caches_in_sight
from .changes import ABSENT, Change, HolderChange, Refusal, change_of
from .forbidden_changes import forbidden, forbidden_flags, parameter_flags, seeding_noted
from .holders import Contents, StateHolder
from .new_buffers import buffer_names, is_new_value, new_buffers
from .noted_calls import checks_noted, gradients_noted
from .reachable import derived_attributes, holders_of

STANDARD = frozenset(vars(nn.Module()))
"""What PyTorch keeps in every module."""


class ReachableState:
    """All that forward of `model` can reach in Python, around each of its passes.

    changes: of the latest pass. assigned: new values of buffers that it was given in place of the old
    ones, by name. refused: what no step may change. gradients: what it asked for itself.
    checks: of numbers, by the user's lines.
    """

    def __init__(self, model: nn.Module, caches: Caches | None = None) -> None:
        self.model = model
        self.changes: list[Change] = []
        self.assigned: dict[str, torch.Tensor] = {}
        self.refused: list[Refusal] = []
        self.gradients: list[str] = []
        self.checks: list[str] = []
        self._caches: Caches = {} if caches is None else caches
        self._holders: list[StateHolder] | None = None
        self._attributes: list[tuple[dict[str, object], dict[str, object]]] = []

    def following(self) -> ReachableState:
        """Of the next step: what was changed since is what it finds."""
        return ReachableState(self.model, self._caches)

    @contextmanager
    def around(self) -> Iterator[None]:
        """A block with one forward pass; behind it all is as it was before."""
        self.changes, self.assigned, self.refused = [], {}, []
        holders = self._reached()
        with caches_in_sight(holders, self._caches) as caches:
            watched = [*holders, *caches]
            before = [holder.read() for holder in watched]
            flags, names = parameter_flags(self.model), buffer_names(self.model)
            own = [*self.model.parameters(), *self.model.buffers()]
            try:
                noted = gradients_noted(), checks_noted()
                with seeding_noted() as seeded, noted[0] as self.gradients, noted[1] as self.checks:
                    yield
                held = list(zip(watched, before, [holder.read() for holder in watched], strict=True))
                self._look(held, names, {id(tensor): tensor for tensor in own})
                self.refused += [*forbidden_flags(self.model, flags), *seeded]
            finally:
                _put_back(watched, before)

    def attach(self) -> None:
        """Modules hold their own lists and dicts again: an export leaves copies in their places."""
        for namespace, attributes in self._attributes:
            for name, value in attributes.items():
                now = namespace.get(name, value)
                if now is not value:
                    namespace[name] = _with_items_of(value, now)

    def _reached(self) -> list[StateHolder]:
        if self._holders is None:
            self._holders = holders_of(self.model)
            modules = list(self.model.modules())
            self._attributes = [(vars(module), _attributes(module)) for module in modules]
        self.attach()
        return self._holders

    def _look(
        self, held: Sequence[HolderChange], names: Mapping[int, str], own: Mapping[int, torch.Tensor]
    ) -> None:
        found = [change for one in held if (change := change_of(one, own)) is not None]
        self.assigned, self.refused = new_buffers(found, held, names)
        self.refused += [refusal for change in found for refusal in forbidden(change)]
        left = (change.without(is_new_value) for change in found)
        self.changes = [change for change in left if change.keys]


def _with_items_of(own: object, copied: object) -> object:
    """A module's own container with what a copy of it holds now, as weights that an export put in there."""
    if isinstance(own, list) and isinstance(copied, list) and len(own) == len(copied):
        own[:] = [_with_items_of(*pair) for pair in zip(own, copied, strict=True)]
    elif isinstance(own, dict) and isinstance(copied, dict) and own.keys() == copied.keys():
        own.update({key: _with_items_of(value, copied[key]) for key, value in own.items()})
    elif not isinstance(own, (list, dict)) and isinstance(copied, torch.Tensor):
        return copied
    return own


def _put_back(holders: Sequence[StateHolder], before: Sequence[Contents]) -> None:
    for holder, contents in zip(holders, before, strict=True):
        now = holder.read()
        if len(now) != len(contents) or any(now.get(k, ABSENT) is not v for k, v in contents.items()):
            holder.write(contents)


def _attributes(module: nn.Module) -> dict[str, object]:
    """What the user calls so."""
    left_out = STANDARD | derived_attributes(module)
    return {name: value for name, value in vars(module).items() if name not in left_out}
