"""A global batch of sequences of any length, divided by length into batches of the programs that run them.

Every sequence goes into the shortest bucket that holds it. A row is one sequence, padded to the bucket's
length; in a packed bucket it is as many as fit, first-fit, the longest first: for a model that can be told
where each begins, by positions and a mask of pairs. The last batch of a bucket is filled up by rows
without labels: no sequence is left out, none is taken twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...errors import RunError
from .data import Batch

TOKENS, POSITIONS, MASK = "input_ids", "position_ids", "attention_mask"
SHOWN = 20
"""Sequences that an error lists."""


@dataclass(frozen=True, slots=True)
class CountedLabels:
    """Which labels a model's loss is the mean over: those not `ignored`, from place `first` of a row.

    first: 1 for a model that shifts its labels by itself, as a ...ForCausalLM does.
    """

    key: str = "labels"
    ignored: int = -100
    first: int = 1

    def of(self, batch: Mapping[str, Tensor]) -> int:
        """How many a batch has."""
        if self.key not in batch:
            raise RunError(
                f"the batch has no {self.key}",
                details=[("inputs", ", ".join(sorted(batch)))],
                rule="a batch weighs as much of a step as it has labels that count",
                fix="name them, CountedLabels(key=...), or give each batch its weight",
            )
        labels = batch[self.key]
        return int((labels[:, self.first :] if labels.dim() > 1 else labels).ne(self.ignored).sum())


@dataclass(frozen=True, slots=True)
class LengthBucket:
    """Sequences of at most `longest` tokens, run by `strategy`, whose program takes `rows` samples."""

    strategy: str
    longest: int
    rows: int
    packed: bool = False


@dataclass(frozen=True, slots=True)
class BucketBatch:
    """A batch of one strategy. sequences: in each row, by their place in the global batch; none: padding.

    labels: how many count.
    """

    strategy: str
    batch: Batch
    sequences: tuple[tuple[int, ...], ...]
    labels: int


SequenceRow = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BucketFill:
    """How rows become tensors. padding: the token behind the end of a sequence."""

    counted: CountedLabels = field(default_factory=CountedLabels)
    padding: int = 0

    def divided(
        self,
        tokens: Sequence[Tensor],
        buckets: Sequence[LengthBucket],
        labels: Sequence[Tensor] | None = None,
    ) -> list[BucketBatch]:
        """All batches of a step, bucket after bucket. labels: of each token; by default the tokens."""
        found = []
        for bucket, rows in zip(buckets, bucket_rows(list(map(len, tokens)), buckets), strict=True):
            for start in range(0, len(rows), bucket.rows):
                some = rows[start : start + bucket.rows]
                full = (*some, *((),) * (bucket.rows - len(some)))
                batch = self._batch(tokens, labels or tokens, bucket, full)
                found.append(BucketBatch(bucket.strategy, batch, full, self.counted.of(batch)))
        return found

    def _batch(
        self,
        tokens: Sequence[Tensor],
        labels: Sequence[Tensor],
        bucket: LengthBucket,
        rows: Sequence[SequenceRow],
    ) -> Batch:
        size = (len(rows), bucket.longest)
        ids, wanted = torch.full(size, self.padding), torch.full(size, self.counted.ignored)
        positions, owner = torch.zeros(size, dtype=torch.int64), torch.full(size, -1)
        for row, sequences in enumerate(rows):
            end = 0
            for sequence in sequences:
                start, end = end, end + len(tokens[sequence])
                ids[row, start:end] = tokens[sequence]
                wanted[row, start:end] = labels[sequence]
                if start:  # what another sequence ends with predicts nothing here
                    wanted[row, start : start + self.counted.first] = self.counted.ignored
                positions[row, start:end] = torch.arange(end - start)
                owner[row, start:end] = sequence
        batch = {TOKENS: ids, self.counted.key: wanted}
        return batch | {POSITIONS: positions, MASK: pairs_of(owner)} if bucket.packed else batch


def pairs_of(owner: Tensor) -> Tensor:
    """Which tokens [row, 1, from, to] attend to which: those of their own sequence, up to themselves."""
    longest = owner.shape[1]
    causal = torch.ones(longest, longest, dtype=torch.bool).tril()
    return (owner[:, :, None].eq(owner[:, None, :]) & causal)[:, None]


def bucket_rows(lengths: Sequence[int], buckets: Sequence[LengthBucket]) -> list[list[SequenceRow]]:
    """The rows of each bucket, the longest sequences first; RunError for all that no bucket holds."""
    longest = max((bucket.longest for bucket in buckets), default=0)
    unfit = [
        (f"sequence {index}", f"{length} tokens")
        for index, length in enumerate(lengths)
        if not 0 < length <= longest
    ]
    if unfit:
        left = len(unfit) - SHOWN
        raise RunError(
            f"{len(unfit)} sequences fit no bucket",
            details=[*unfit[:SHOWN], *([("others", f"{left} more")] if left > 0 else [])],
            rule=f"a sequence has 1 to {longest} tokens, as the longest bucket; none is cut or left out",
            fix="cut long ones before, leave out empty ones, or compile a strategy for longer ones",
        )
    held: list[list[int]] = [[] for _ in buckets]
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        fitting = [at for at, bucket in enumerate(buckets) if bucket.longest >= lengths[index]]
        held[min(fitting, key=lambda at: buckets[at].longest)].append(index)
    return [
        first_fit(own, lengths, bucket.longest) if bucket.packed else [(index,) for index in own]
        for bucket, own in zip(buckets, held, strict=True)
    ]


def first_fit(sequences: Sequence[int], lengths: Sequence[int], longest: int) -> list[SequenceRow]:
    """Each sequence in the first row that has room for it."""
    rows: list[list[int]] = []
    room: list[int] = []
    for sequence in sequences:
        at = next((row for row, free in enumerate(room) if free >= lengths[sequence]), len(rows))
        if at == len(rows):
            rows.append([])
            room.append(longest)
        rows[at].append(sequence)
        room[at] -= lengths[sequence]
    return [tuple(row) for row in rows]
