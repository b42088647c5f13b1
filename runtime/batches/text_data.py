"""Text files as data of a language model: sequences of bytes or tokens, shuffled by seed, own rows only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...errors import RunError
from ...program.sized.size_range import SizeRange
from .data import Batch, BatchShape, Epochs, SampleRanges, epoch_seed
from .tokens import BYTE_VALUES, ByteTokens, FileTokens, Tokens, tokenized

IDS, LABELS, MASK = "input_ids", "labels", "attention_mask"


class TextData(Epochs):
    """Consecutive sequences of the text, in an order that seed and epoch give; labels are the input.

    Only the rows of this rank are read, one micro-batch after the other. A last incomplete sequence,
    and a last incomplete batch of an epoch, are left out.
    """

    local = True

    def __init__(
        self, tokens: Tokens, shape: BatchShape, rows: SampleRanges, keys: frozenset[str], seed: int = 0
    ) -> None:
        _check_inputs(shape)
        super().__init__(seed)
        self._tokens = tokens
        self._shape = shape
        self._rows = rows
        self._keys = keys
        self._length = shape.inputs[IDS][0][1]
        _check_enough(len(tokens), self._length, shape.batch)

    @property
    def sequences(self) -> int:
        """Whole sequences in the text."""
        return len(self._tokens) // self._length

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches in one epoch."""
        return self.sequences // self._shape.batch

    def __iter__(self) -> Iterator[Batch]:
        order = self._order()
        while self._batches < self.batches_per_epoch:
            samples = order[self._batches * self._shape.batch :][: self._shape.batch]
            self._batches += 1
            yield self._batch(samples)
        self.left_out += self.sequences % self._shape.batch
        self._end_epoch()

    def take_rows(self, rows: SampleRanges, keys: frozenset[str], sizes: SizeRange | None = None) -> None:
        """See DataSource."""
        self._rows, self._keys = rows, keys

    def _order(self) -> Tensor:
        """The samples of this epoch, the same on every rank."""
        generator = torch.Generator().manual_seed(epoch_seed(self._seed, self.epoch))
        return torch.randperm(self.sequences, generator=generator)

    def _batch(self, samples: Tensor) -> Batch:
        if not self._keys:
            return {}
        own = [int(sample) for low, high in self._rows for sample in samples[low:high]]
        ids = torch.stack([self._sequence(sample) for sample in own]) if own else self._none()
        values = {IDS: ids, LABELS: ids, MASK: torch.ones_like(ids)}
        return {key: values[key] for key in self._keys}

    def _sequence(self, sample: int) -> Tensor:
        return self._tokens.read(sample * self._length, (sample + 1) * self._length)

    def _none(self) -> Tensor:
        return torch.empty(0, self._length, dtype=torch.int64)


def open_text(files: Sequence[Path], vocabulary: int | None, tokenizer: Path | None = None) -> Tokens:
    """The tokens of text files: bytes, or those of a Hugging Face tokenizer folder.

    vocabulary: what the model takes, None where it isn't known here.
    """
    _check_files(files)
    if tokenizer is None:
        _check_vocabulary(vocabulary, BYTE_VALUES, "bytes need")
        return ByteTokens(files)
    path, size = tokenized(files, tokenizer)
    _check_vocabulary(vocabulary, size, f"the tokenizer {tokenizer.name} needs")
    return FileTokens(path)


def _check_inputs(shape: BatchShape) -> None:
    """Text gives token ids of one sequence length, and what follows from them."""
    wrong = [(key, "text can't give this input") for key in shape.inputs if key not in (IDS, LABELS, MASK)]
    wrong += [
        (key, f"{dtype}{list(size)}, text gives int64 of two dims")
        for key, (size, dtype) in shape.inputs.items()
        if len(size) != 2 or dtype != "int64"
    ]
    if wrong or IDS not in shape.inputs:
        raise RunError(
            "--text doesn't fit the program's inputs",
            details=wrong or [(IDS, "missing")],
            rule=f"text trains a model of {IDS}, and {LABELS} and {MASK} where it takes them",
            fix="give batches by --data module:factory",
        )


def _check_enough(tokens: int, length: int, batch: int) -> None:
    if tokens < length * batch:
        raise RunError(
            "the text is shorter than one batch",
            details=[("text", f"{tokens} tokens"), ("batch", f"{batch} sequences of {length} tokens")],
            rule="an epoch has at least one whole batch; what fills none is left out",
        )


def _check_files(files: Sequence[Path]) -> None:
    missing = [(str(path), "no such file") for path in files if not path.is_file()]
    if missing or not files:
        raise RunError("text files are missing", details=missing or [("--text", "no file given")])


def _check_vocabulary(vocabulary: int | None, needed: int, who: str) -> None:
    if vocabulary is not None and vocabulary < needed:
        raise RunError(
            "the model's vocabulary is too small for the text",
            details=[("model", f"{vocabulary} tokens"), ("text", f"{who} {needed}")],
            fix="compile the model with a larger vocab_size, or use a tokenizer that fits",
        )
