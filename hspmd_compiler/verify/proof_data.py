"""Batches that a user gives to a proof, held to what the program takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from torch import Tensor

from ..errors import OptionError
from ..program.program import Program
from ..runtime.batches.data import BatchShape, FactoryData, load_factory

Batch = Mapping[str, Tensor]


def given_to(program: Program, batch: Batch | Iterable[Batch], steps: int) -> list[Batch]:
    """One global batch for every step, or the first of several; an OptionError where there is none."""
    found = [batch] if isinstance(batch, Mapping) else list(islice(batch, steps))
    shape = BatchShape.of(program)
    for each in found:
        if not isinstance(each, Mapping):
            raise _no_dict(each)
        shape.check(each)
    if not found:
        raise _empty("batch")
    return found


def made_for(program: Program, name: str, steps: int) -> list[Batch]:
    """The first batches of `module:factory`, as `hspmd run --data` takes them, of one epoch."""
    whole = [(0, program.batch)]
    factory = load_factory(name)
    data = FactoryData(factory, BatchShape.of(program), 0, whole, frozenset(program.inputs))
    found: list[Batch] = list(islice(data, steps))
    if not found:
        raise _empty(f"--data {name}")
    return found


def _no_dict(batch: object) -> OptionError:
    return OptionError(
        f"a batch is a {type(batch).__name__}",
        rule="a batch is a dict of tensors, by the names of forward's arguments",
        fix="batch={'x': x, 'y': y}, or a list of such dicts",
    )


def _empty(what: str) -> OptionError:
    return OptionError(
        f"{what} gives no batch to verify with",
        rule="a proof steps on at least one whole global batch",
        fix="give a dict of tensors with all samples of the global batch, or an iterable of such dicts",
    )
