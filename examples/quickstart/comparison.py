"""Both trainings side by side, and whether they are equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text
from trained import EARLY, Trained

from hspmd_compiler.verify.equality import Difference, differences, gradient_floor, loss_difference

TOLERANCE = 1e-5
FORMULA = "largest |a - b|, and relative to the tensor's largest value"


@dataclass(frozen=True, slots=True)
class Kind:
    """Differences of one kind, worst first. bar: the largest relative one allowed, None: only reported."""

    name: str
    found: Sequence[Difference]
    bar: float | None = TOLERANCE

    @property
    def equal(self) -> bool:
        """Whether the bar is met."""
        return self.bar is None or all(item.within(self.bar) for item in self.found)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two trainings of the same model from the same seed on the same batches."""

    ranks: Trained
    eager: Trained
    steps: Sequence[Difference]
    kinds: Sequence[Kind]

    @classmethod
    def of(cls, ranks: Trained, eager: Trained, lr: float) -> Comparison:
        """Tiny tensors count by a floor: 1/1000 of the largest gradient; of parameters, the learning rate."""
        steps = [loss_difference(a, b) for a, b in zip(ranks.losses, eager.losses, strict=True)]
        kinds = (
            Kind("loss, every step", sorted(steps, key=lambda step: step.error, reverse=True)),
            Kind(
                "gradients, first step",
                differences(ranks.gradients, eager.gradients, gradient_floor(eager.gradients)),
            ),
            Kind(
                f"parameters, after {EARLY} steps",
                differences(ranks.early_parameters, eager.early_parameters, lr),
            ),
            Kind(
                f"parameters, after {len(steps)} steps",
                differences(ranks.parameters, eager.parameters, lr),
                bar=None,
            ),
        )
        return cls(ranks, eager, steps, kinds)

    @property
    def equal(self) -> bool:
        """Whether every kind meets its bar."""
        return all(kind.equal for kind in self.kinds)

    def losses(self) -> Table:
        """Loss by step."""
        table = Table(title="loss")
        for column in ("step", "five ranks", "one device", "difference"):
            table.add_column(column, justify="right")
        numbers = zip(self.ranks.losses, self.eager.losses, self.steps, strict=True)
        for step, (ranks, eager, difference) in enumerate(numbers, 1):
            table.add_row(str(step), f"{ranks:.7f}", f"{eager:.7f}", f"{difference.largest:.1e}")
        return table

    def largest(self) -> Table:
        """The worst tensor of each kind."""
        table = Table(title=FORMULA)
        for column in ("of", "largest", "relative", "allowed"):
            table.add_column(column, justify="left" if column == "of" else "right")
        for kind in self.kinds:
            worst = kind.found[0]
            allowed = "reported" if kind.bar is None else f"{kind.bar:.0e}"
            table.add_row(kind.name, f"{worst.largest:.1e}", f"{worst.error:.1e}", allowed)
        return table

    def verdict(self) -> Text:
        """One line."""
        if self.equal:
            return Text("EQUAL: five ranks train as one device does (float32, SGD)", style="bold green")
        beyond = ", ".join(kind.name for kind in self.kinds if not kind.equal)
        return Text(f"NOT EQUAL beyond rounding: {beyond}", style="bold red")
