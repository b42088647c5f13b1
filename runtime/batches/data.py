"""Batches for training: an iterator of global batches made by a user's factory, checked and resumable."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

import numpy
import torch
from torch import Tensor

from ...base.names.named_import import import_named
from ...base.source_lines import lines_of_error
from ...errors import HspmdError, RunError
from ...program.program import Program
from ...program.sized.size_range import SizeRange
from ...program.sized.sizes import Count
from ...program.sized.step_plan import StepPlan

Batch = dict[str, Tensor]
SampleRanges = Sequence[tuple[int, int]]
BatchFactory = Callable[..., Iterator[Mapping[str, Tensor]]]

SEEDS_PER_EPOCH = 1_000_003
SEEDS = 2**64
"""As many as torch has."""
NUMPY_SEEDS = 2**32
END: Batch = {}
"""Stands behind the last batch, known by being this very dict: an iterator may give anything, None too."""
CALLED = (
    "a factory is called with those of seed, epoch, batch_size, rows and keys that it names; it returns an"
    " iterable of batches, which are dicts of tensors"
)
NAMED = "--data is module:factory; the current folder is importable"
SHOWN = 300
"""Characters of a message of the user's own code."""


class DataSource(Protocol):
    """Epochs of batches. Iterating gives what is left of the current epoch, then the next begins.

    local: batches hold only this rank's rows, one micro-batch after the other, not the global batch.
    left_out: samples so far that filled no batch at the end of an epoch.
    """

    @property
    def local(self) -> bool: ...

    @property
    def epoch(self) -> int: ...

    @property
    def left_out(self) -> int: ...

    @property
    def at_start(self) -> bool:
        """Whether no batch of the current epoch was used yet."""

    @property
    def batches(self) -> int:
        """Batches used of the current epoch."""

    @property
    def seed(self) -> int:
        """What the order of the data is drawn from."""

    @property
    def plan(self) -> StepPlan | None:
        """How the batch given last is taken, where each step chooses that."""

    def __iter__(self) -> Iterator[Batch]: ...

    def take_rows(self, rows: SampleRanges, keys: frozenset[str], sizes: SizeRange | None = None) -> None:
        """Give other rows from the next batch on, of other inputs: this rank's of another program.

        Whoever iterates begins to anew, at the same place. sizes: of the other program's micro-batches, where
        each step chooses them; `plan` is one for it from now on.
        """

    def state_dict(self) -> dict[str, object]: ...

    def load_state_dict(self, state: Mapping[str, object]) -> None: ...


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What a program takes: samples of a batch, and shape and dtype of each input.

    needed: the inputs that a batch must hold, None for all of them. dim: of each input that counts samples;
    1 where a batch is one row of packed tokens, and these are counted. left_out: masks that a batch may hold,
    of ones: nothing reads them.
    """

    batch: int
    inputs: Mapping[str, tuple[tuple[int, ...], str]]
    needed: frozenset[str] | None = None
    dim: int = 0
    left_out: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program) -> BatchShape:
        """Of the batches of a program, or of its first probe, where each step chooses the sizes."""
        if program.sizes is not None:
            dim = int(program.sizes.unit is Count.TOKENS)
            batch = program.sizes.probes[0].total(program.sizes.unit)
            return cls(batch, program.inputs, dim=dim, left_out=program.left_out)
        dim = program.ranks[0].row_dim if program.ranks else 0
        return cls(program.batch, program.inputs, dim=dim, left_out=program.left_out)

    @property
    def unit(self) -> str:
        """What `batch` counts."""
        return "tokens" if self.dim else "samples"

    def of_rows(self, rows: SampleRanges, needed: frozenset[str]) -> BatchShape:
        """What one rank takes: these rows of the global batch, of the inputs that it needs."""
        return replace(self, batch=sum(high - low for low, high in rows), needed=needed)

    def clashes(self, batch: Mapping[str, Tensor], samples: int) -> list[tuple[str, str]]:
        """What is wrong with a batch of so many samples, as (key, text)."""
        needed = self.inputs if self.needed is None else sorted(self.needed)
        wrong = [(key, "missing") for key in needed if key not in batch]
        for key, tensor in batch.items():
            known = self.inputs.get(key) or self.left_out.get(key)
            if known is None:
                wrong.append((key, "the program has no such input"))
                continue
            shape, dtype = known
            wanted = f"{dtype}{[*(1,) * self.dim, samples, *shape[self.dim + 1 :]]}"
            if (got := _described(tensor)) != wanted:
                wrong.append((key, f"{got}, wanted {wanted}"))
        return wrong

    def check(self, batch: Mapping[str, Tensor]) -> None:
        """Raise one RunError with every key that doesn't fit."""
        wrong = self.clashes(batch, self.batch)
        if wrong:
            raise RunError(
                "a batch doesn't fit the program",
                details=wrong,
                rule="a batch is a dict of tensors; shapes and dtypes are those the program was compiled for",
            )
        self.refuse_masking(batch)

    def refuse_masking(self, batch: Mapping[str, Tensor]) -> None:
        """Raise one RunError for masks that are not ones, where nothing reads them."""
        masks = {key: batch[key] for key in self.left_out if key in batch}
        zeros = {key: int((mask == 0).sum()) for key, mask in masks.items()}
        wrong = [
            (key, f"leaves out {zeros[key]} of {masks[key].numel()} tokens") for key in masks if zeros[key]
        ]
        if wrong:
            raise RunError(
                "a mask leaves out tokens, and the program was compiled without it",
                details=wrong,
                rule="beside position_ids, which tell where documents begin, a mask of ones is left out, as"
                " that of the example was",
                fix="give ones, and labels of -100 where tokens are to count for nothing; or compile with an"
                " example whose mask leaves out a token: it is applied then, and documents see each other",
            )


class Epochs:
    """Where a source of batches stands: epoch, batches used of it, seed, and samples left out so far.

    plan: of the batch given last, where each step chooses how it is taken.
    """

    def __init__(self, seed: int) -> None:
        self.epoch = 0
        self.left_out = 0
        self.plan: StepPlan | None = None
        self._batches = 0
        self._seed = seed

    @property
    def at_start(self) -> bool:
        """See DataSource."""
        return self._batches == 0

    @property
    def batches(self) -> int:
        """See DataSource."""
        return self._batches

    @property
    def seed(self) -> int:
        """See DataSource."""
        return self._seed

    def state_dict(self) -> dict[str, object]:
        """Epoch, batches used of it, and seed."""
        return {"epoch": self.epoch, "batches": self._batches, "seed": self._seed}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on behind the last batch that was used."""
        self.epoch, self._batches, self._seed = read_position(state)

    def _end_epoch(self) -> None:
        self._batches = 0
        self.epoch += 1


def read_position(state: Mapping[str, object]) -> tuple[int, int, int]:
    """Epoch, batches and seed of a data state."""
    values = [state.get(key) for key in ("epoch", "batches", "seed")]
    counts = [value for value in values if type(value) is int]
    if len(counts) < len(values) or min(counts[:2]) < 0:
        raise RunError("not the state of a data iterator", rule="it has epoch, batches and seed")
    epoch, batches, seed = counts
    return epoch, batches, seed


class FactoryData(Epochs):
    """Batches from `factory()`, called anew for each epoch: global ones, or those of `rows`.

    The factory gets those of the keywords `seed`, `epoch`, `batch_size`, `rows` and `keys` that its
    signature names. One that names `rows` loads for its own rank: its batches hold these rows of the
    global batch, [low, high) per micro-batch, one after the other, of at least the inputs `keys`.
    Before each call torch's, NumPy's and Python's generators are seeded, alike on every rank. Its iterator
    may have state_dict and load_state_dict; otherwise resuming skips batches. A last batch that is
    too short is left out and counted.
    """

    def __init__(
        self,
        factory: BatchFactory,
        shape: BatchShape,
        seed: int = 0,
        rows: SampleRanges = (),
        keys: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(seed)
        self._factory = factory
        self._named = inspect.signature(factory).parameters
        self.local = "rows" in self._named
        self._whole = shape
        self._shape = shape.of_rows(rows, keys) if self.local else shape
        self._offered = {"batch_size": shape.batch, "rows": list(rows), "keys": keys}
        self._inner: Iterator[Mapping[str, Tensor]] | None = None

    def __iter__(self) -> Iterator[Batch]:
        if self._inner is None:
            self._inner = self._start()
            for _ in range(self._batches):
                if self._next(self._inner) is END:
                    break
        while (batch := self._next(self._inner)) is not END:
            _check_dict(batch)
            if self._is_last_and_short(batch):
                self.left_out += count_samples(batch)
                break
            self._shape.check(batch)
            self._batches += 1
            yield dict(batch)
        self._inner = None
        self._end_epoch()

    def take_rows(self, rows: SampleRanges, keys: frozenset[str], sizes: SizeRange | None = None) -> None:
        """See DataSource. A factory that names `rows` is called anew; batches that were used are skipped."""
        if self.local:
            self._shape = self._whole.of_rows(rows, keys)
            self._offered = {**self._offered, "rows": list(rows), "keys": keys}
            self._inner = None

    def state_dict(self) -> dict[str, object]:
        """Where it stands, and the state of the iterator if it keeps one."""
        keeps = getattr(self._inner, "state_dict", None)
        with telling_users_line("the data's iterator doesn't give its state"):
            inner = None if keeps is None else keeps()
        return {**super().state_dict(), "iterator": inner}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on behind the last batch that was used; an iterator that takes no state skips batches."""
        super().load_state_dict(state)
        self._inner = None
        if state.get("iterator") is not None and hasattr(inner := self._start(), "load_state_dict"):
            with telling_users_line("the data's iterator doesn't take the state that it gave"):
                inner.load_state_dict(state["iterator"])
            self._inner = inner

    def _start(self) -> Iterator[Mapping[str, Tensor]]:
        seed_generators(epoch_seed(self._seed, self.epoch))
        offered = {"seed": self._seed, "epoch": self.epoch, **self._offered}
        given = {name: value for name, value in offered.items() if name in self._named}
        with telling_users_line("the data's factory fails"):
            return iter(self._factory(**given))

    def _next(self, inner: Iterator[Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """The next batch as the user's iterator gives it; END behind the last."""
        with telling_users_line(f"the data fails in batch {self._batches + 1} of epoch {self.epoch}"):
            return next(inner, END)

    def _is_last_and_short(self, batch: Mapping[str, Tensor]) -> bool:
        """Whether this batch has too few samples, the same of each key, and ends its epoch."""
        count = count_samples(batch)
        if not 0 < count < self._shape.batch:
            return False
        if self._shape.clashes(batch, count):
            return False
        assert self._inner is not None
        if self._next(self._inner) is END:
            return True
        raise RunError(
            f"a batch of {count} samples, where the program takes {self._shape.batch}",
            rule="only the last batch of an epoch may be shorter; it is left out",
        )


@contextmanager
def telling_users_line(what: str, rule: str = CALLED) -> Iterator[None]:
    """An exception of the user's own code is told as such, with the line it comes from."""
    try:
        yield
    except HspmdError:
        raise
    except (Exception, SystemExit) as error:
        raise RunError(
            what,
            at=lines_of_error(error),
            details=[(type(error).__name__, _last_words(error))],
            rule=rule,
        ) from error


def _last_words(error: BaseException) -> str:
    """What an exception says, of a trace as text its last line."""
    text = str(error)
    told = text.strip().splitlines()[-1] if "Traceback (most recent call last)" in text else text
    return " ".join(told.split())[:SHOWN]


def _check_dict(batch: object) -> None:
    if not isinstance(batch, Mapping):
        raise RunError(
            f"a batch is a {type(batch).__name__}",
            rule="a batch is a dict of tensors, by the names of forward's arguments",
            fix="yield {'x': x, 'y': y} for each x, y of the loader",
        )


def count_samples(batch: Mapping[str, Tensor]) -> int:
    """Samples of a batch, 0 where its tensors don't agree."""
    counts = {len(tensor) for tensor in batch.values() if isinstance(tensor, Tensor) and tensor.dim()}
    return counts.pop() if len(counts) == 1 else 0


def epoch_seed(seed: int, epoch: int) -> int:
    """A seed of torch for one epoch of a run."""
    return (seed * SEEDS_PER_EPOCH + epoch) % SEEDS


def seed_generators(seed: int) -> None:
    """Seed what code that makes data draws from without saying so: torch, NumPy and Python."""
    torch.manual_seed(seed)
    numpy.random.seed(seed % NUMPY_SEEDS)
    random.seed(seed)


def load_factory(name: str) -> BatchFactory:
    """The factory that `module:factory` names; the current folder is importable."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise RunError(f"--data {name} is not module:factory", fix="for example --data my_data:batches")
    with telling_users_line(f"--data {name} can't be loaded", NAMED):
        found = getattr(import_named(module), attribute)
    if not callable(found):
        raise RunError(
            f"--data {name} is not a function",
            details=[("type", type(found).__name__)],
            rule="it is called anew for each epoch",
            fix="def batches(): return it, and name that",
        )
    return cast(BatchFactory, found)


def _described(value: object) -> str:
    """Dtype and shape of a tensor, the type of anything else."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    kind = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if value.is_meta:
        return f"{kind} without values"
    return kind if value.layout is torch.strided else f"{str(value.layout).removeprefix('torch.')} {kind}"
