"""The state of what code of a user's data may draw from: the generators of torch, NumPy and Python."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, Any

import numpy
import torch

from ....base.typed import ValueRule
from ....errors import RunError

TWISTER = "MT19937"
WORDS, PYTHON_VERSION = 624, 3
"""Of a Mersenne twister; and of what Python says of its own."""


def _words(count: int) -> ValueRule:
    return ValueRule(
        lambda words: len(words) == count and all(0 <= word < 1 << 32 for word in words),
        f"{count} whole numbers below 2**32",
    )


@dataclass(frozen=True, slots=True)
class NumpyState:
    """Of NumPy's global generator. key, place: of the twister. gauss: a number drawn ahead, if has_gauss."""

    key: Annotated[tuple[int, ...], _words(WORDS)]
    place: Annotated[int, ValueRule(lambda place: 0 <= place <= WORDS, f"0 to {WORDS}")]
    has_gauss: bool
    gauss: float


@dataclass(frozen=True, slots=True)
class RandomState:
    """numpy: None where its global generator is no twister. python: words of the twister and its place."""

    torch: str
    numpy: NumpyState | None
    python: Annotated[tuple[int, ...], _words(WORDS + 1)]
    python_gauss: float | None

    @classmethod
    def here(cls) -> RandomState:
        """Of this process."""
        _, words, gauss = random.getstate()
        return cls(torch.get_rng_state().numpy().tobytes().hex(), _numpy_state(), words, gauss)

    def restore(self) -> None:
        """Go on drawing from it; RunError where it is none."""
        try:
            torch.set_rng_state(torch.tensor(list(bytes.fromhex(self.torch)), dtype=torch.uint8))
            random.setstate((PYTHON_VERSION, self.python, self.python_gauss))
        except (ValueError, RuntimeError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise RunError(
                "a state of random numbers can't be restored", details=[("reason", reason)]
            ) from error
        if (held := self.numpy) is not None:
            key = numpy.array(held.key, dtype=numpy.uint32)
            numpy.random.set_state((TWISTER, key, held.place, int(held.has_gauss), held.gauss))


def _numpy_state() -> NumpyState | None:
    found: Any = numpy.random.get_state(legacy=False)
    if found["bit_generator"] != TWISTER:
        return None
    inner = found["state"]
    key = tuple(int(word) for word in inner["key"])
    return NumpyState(key, int(inner["pos"]), bool(found["has_gauss"]), float(found["gauss"]))
