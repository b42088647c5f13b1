"""Batches for training: an iterator of global batches made by a user's factory, checked and resumable."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor

from ..artifact.program import Program
from ..errors import RunError

Batch = dict[str, Tensor]
Rows = Sequence[tuple[int, int]]
Factory = Callable[..., Iterator[Mapping[str, Tensor]]]


class DataSource(Protocol):
    """Epochs of batches. Iterating gives what is left of the current epoch, then the next begins.

    local: batches hold only this rank's rows, one micro-batch after the other, not the global batch.
    """

    local: bool
    epoch: int

    def __iter__(self) -> Iterator[Batch]: ...

    def state_dict(self) -> dict[str, object]: ...

    def load_state_dict(self, state: Mapping[str, object]) -> None: ...


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What a program takes: samples of a global batch, and shape and dtype of each input."""

    batch: int
    inputs: Mapping[str, tuple[tuple[int, ...], str]]

    @classmethod
    def of(cls, program: Program) -> BatchShape:
        return cls(program.batch, program.inputs)

    def clashes(self, batch: Mapping[str, Tensor], samples: int) -> list[tuple[str, str]]:
        """What is wrong with a batch of so many samples, as (key, text)."""
        wrong = [(key, "missing") for key in self.inputs if key not in batch]
        for key, tensor in batch.items():
            if key not in self.inputs:
                wrong.append((key, "the program has no such input"))
                continue
            shape, dtype = self.inputs[key]
            wanted = f"{dtype}{[samples, *shape[1:]]}"
            if (got := _described(tensor)) != wanted:
                wrong.append((key, f"{got}, wanted {wanted}"))
        return wrong

    def check(self, batch: Mapping[str, Tensor], samples: int | None = None) -> None:
        """Raise one RunError with every key that doesn't fit; samples: of the global batch by default."""
        wrong = self.clashes(batch, self.batch if samples is None else samples)
        if wrong:
            raise RunError(
                "a batch doesn't fit the program",
                details=wrong,
                rule="a batch is a dict of tensors; shapes and dtypes are those the program was compiled for",
            )


def own_rows(batch: Mapping[str, Tensor], rows: Rows) -> Batch:
    """This rank's rows of a global batch, one micro-batch after the other."""
    return {key: torch.cat([tensor[low:high] for low, high in rows]) for key, tensor in batch.items()}


class FactoryData:
    """Global batches from `factory()`, called anew for each epoch.

    The factory gets those of the keywords `seed`, `epoch` and `batch_size` that its signature
    names. Its iterator may have state_dict and load_state_dict; otherwise resuming skips batches.
    A last batch that is too short is dropped.
    """

    local = False

    def __init__(self, factory: Factory, shape: BatchShape, seed: int = 0) -> None:
        self.epoch = 0
        self._batches = 0
        self._factory = factory
        self._shape = shape
        self._seed = seed
        self._inner: Iterator[Mapping[str, Tensor]] | None = None

    def __iter__(self) -> Iterator[Batch]:
        if self._inner is None:
            self._inner = self._start()
            for _ in range(self._batches):
                next(self._inner, None)
        while (batch := next(self._inner, None)) is not None:
            if self._is_last_and_short(batch):
                break
            self._shape.check(batch)
            self._batches += 1
            yield dict(batch)
        self._inner, self._batches = None, 0
        self.epoch += 1

    def state_dict(self) -> dict[str, object]:
        """Epoch, batches used of it, and the state of the iterator if it keeps one."""
        keeps = getattr(self._inner, "state_dict", None)
        inner = None if keeps is None else keeps()
        return {"epoch": self.epoch, "batches": self._batches, "seed": self._seed, "iterator": inner}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on behind the last batch that was used; an iterator that takes no state skips batches."""
        self.epoch, self._batches, self._seed = read_position(state)
        self._inner = None
        if state.get("iterator") is not None and hasattr(inner := self._start(), "load_state_dict"):
            inner.load_state_dict(state["iterator"])
            self._inner = inner

    def _start(self) -> Iterator[Mapping[str, Tensor]]:
        offered = {"seed": self._seed, "epoch": self.epoch, "batch_size": self._shape.batch}
        taken = inspect.signature(self._factory).parameters
        return iter(self._factory(**{name: value for name, value in offered.items() if name in taken}))

    def _is_last_and_short(self, batch: Mapping[str, Tensor]) -> bool:
        """Whether this batch has too few samples, the same of each key, and ends its epoch."""
        samples = {len(tensor) for tensor in batch.values() if isinstance(tensor, Tensor) and tensor.dim()}
        if len(samples) != 1 or (count := samples.pop()) >= self._shape.batch:
            return False
        if self._shape.clashes(batch, count):
            return False
        assert self._inner is not None
        if next(self._inner, None) is None:
            return True
        raise RunError(
            f"a batch of {count} samples, where the program takes {self._shape.batch}",
            rule="only the last batch of an epoch may be shorter; it is dropped",
        )


def load_factory(name: str) -> Factory:
    """The factory that `module:factory` names; the current folder is importable."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise RunError(f"--data {name} is not module:factory", fix="for example --data my_data:batches")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise RunError(f"--data {name} can't be loaded", details=[("reason", reason)]) from error
    if not callable(found):
        raise RunError(f"--data {name} is not a function", details=[("type", type(found).__name__)])
    return cast(Factory, found)


def read_position(state: Mapping[str, object]) -> tuple[int, int, int]:
    """Epoch, batches and seed of a data state."""
    values = [state.get(key) for key in ("epoch", "batches", "seed")]
    counts = [value for value in values if type(value) is int]
    if len(counts) < len(values) or min(counts[:2]) < 0:
        raise RunError("not the state of a data iterator", rule="it has epoch, batches and seed")
    epoch, batches, seed = counts
    return epoch, batches, seed


def _described(value: object) -> str:
    """Dtype and shape of a tensor, the type of anything else."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
