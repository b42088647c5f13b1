"""What a forward pass changes in Python, where no graph sees it: what modules hold, random draws."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import TraceError
from ..log import logger
from .ir import LogicalGraph
from .kept_tensors import Kept, does_the_same

PLAIN = (bool, int, float, str, type(None))
RULE = "a compiled step does at every step what forward did once, while it was traced"
FIX = (
    "keep what changes from step to step in a buffer, or pass it, and what is drawn, as an input of the"
    " batch; switch off layerdrop and the like"
)
ABSENT = "nothing"
MOST = 1000
Held = dict[tuple[str, str], tuple[nn.Module | None, object]]
"""Value by path and name; the module that holds it, None for the state of a generator."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that a forward pass left otherwise. holder: the module, None for a generator of numbers."""

    where: str
    before: object
    after: object
    holder: nn.Module | None = None
    name: str = ""

    def make(self) -> None:
        """Leave it so again: tracing puts back what modules held."""
        if self.holder is not None:
            after = self.after.stand_in() if isinstance(self.after, Kept) else copy(self.after)
            setattr(self.holder, self.name, after)

    def undo(self) -> None:
        """Leave it as it was before."""
        if self.holder is not None and self.before is ABSENT:
            delattr(self.holder, self.name)
        elif self.holder is not None:
            before = self.before.tensor if isinstance(self.before, Kept) else copy(self.before)
            setattr(self.holder, self.name, before)


def traced_steadily(model: nn.Module, trace: Callable[[], LogicalGraph]) -> LogicalGraph:
    """What `trace` gives of `model`; where forward changes what Python holds, the step after it is compared.

    A TraceError where that is another one; a warning where it is the same, but goes on changing. A tensor
    that every step leaves anew, as a loss to be read later, is no matter, nor is one that the first step
    makes from constants for all others, as a mask.
    """
    with _watching(model) as changes:
        graph = trace()
    if not changes:
        return graph
    made = list(changes)
    again, goes_on = _next_step(model, trace, made)
    anew = {change.where for change in goes_on}
    kept = [item.after for item in made if isinstance(item.after, Kept) and item.where not in anew]
    if not does_the_same(graph, again, kept):
        raise _unsteady(made)
    moving = [change.where for change in goes_on if not isinstance(change.after, Kept)]
    if moving:
        logger.warning("forward changes %s: %s", ", ".join(moving), RULE)
    return graph


def _next_step(
    model: nn.Module, trace: Callable[[], LogicalGraph], made: Sequence[Change]
) -> tuple[LogicalGraph, Sequence[Change]]:
    """The step after these changes, and what it changes in turn."""
    try:
        for change in made:
            change.make()
        with _watching(model) as changes:
            return trace(), changes
    except Exception as error:  # what one step can do and the next can't
        raise _unsteady(made) from error
    finally:
        for change in made:
            change.undo()


def _unsteady(made: Sequence[Change]) -> TraceError:
    return TraceError(
        "forward does something else at the next step",
        details=[(change.where, f"{change.before} before, {change.after} after") for change in made],
        rule=RULE,
        fix=FIX,
    )


@contextmanager
def _watching(model: nn.Module) -> Iterator[list[Change]]:
    """Gathers what the latest forward pass of the model in this block changed."""
    held: Held = {}
    changes: list[Change] = []

    def before(*_: object) -> None:
        held.clear()
        held.update(_state(model))

    def after(*_: object) -> None:
        changes[:] = _differences(held, _state(model))

    hooks = (model.register_forward_pre_hook(before), model.register_forward_hook(after))
    try:
        yield changes
    finally:
        for hook in hooks:
            hook.remove()


def _state(model: nn.Module) -> Held:
    """Who holds what, by the path of the module and the name there."""
    found: Held = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            numbers = _random_state(value)
            if numbers is not None:
                found[path, name] = None, numbers
            elif isinstance(value, torch.Tensor):
                found[path, name] = module, Kept(value)
            elif isinstance(value, PLAIN):
                found[path, name] = module, value
            elif type(value) in (list, dict, set) and _is_plain(value):
                found[path, name] = module, copy(value)
    found["random numbers of Python", ""] = None, random.getstate()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        _, key, place, *_ = numpy.random.get_state()
        found["random numbers of NumPy", ""] = None, (key.tobytes(), place)
    return found


def _random_state(value: object) -> object:
    """Of a generator that a module holds, else None."""
    if isinstance(value, random.Random):
        return value.getstate()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return repr(value.bit_generator.state)
    return None


def _is_plain(values: list[object] | dict[object, object] | set[object]) -> bool:
    """Whether a container is small and holds nothing that is not plain itself."""
    items = values.values() if isinstance(values, dict) else values
    return len(values) <= MOST and all(isinstance(item, PLAIN) for item in items)


def _differences(before: Held, after: Held) -> list[Change]:
    found = []
    for key, (holder, value) in after.items():
        old = before.get(key, (None, ABSENT))[1]
        if type(old) is type(value) and (old == value or value != value):
            continue
        shown = (old, value) if holder is not None else ("one state", "another")
        found.append(Change(".".join(filter(None, key)), *shown, holder, key[1]))
    return found
