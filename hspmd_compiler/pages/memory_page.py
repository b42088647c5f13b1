"""What each rank stores, in bytes: parameters, gradients, optimizer state, values kept for backward."""

from __future__ import annotations

from collections.abc import Sequence

from ..artifact.store import Artifact
from ..base.number_ranges import number_ranges
from ..cost_models.steps.stored_bytes import StoredBytes, stored_bytes
from ..errors import OptionError
from ..program.program import Program
from ..program.sized.plan_check import check_plan
from ..program.sized.saved_bytes import saved_bytes, saved_text
from ..program.sized.size_range import SizeRange
from ..program.sized.sizes import Count
from ..program.sized.spread import uniform_plan
from .sections import Cell, Table

KEPT = "kept for backward"
RANKS = (("rank",),)
"""Ranks that are alike in all else are one line of a long table."""


def memory_tables(artifact: Artifact, size: int | None = None) -> list[Table]:
    """A line per rank; of a program for micro-batches of any size what is kept stands apart, see
    `kept_table`."""
    rows: list[tuple[Cell, ...]] = []
    known: dict[object, StoredBytes] = {}  # ranks of many pipelines hold the same
    sizes = artifact.program.sizes
    for own in artifact.program.ranks:
        alike = (*map(id, own.shards), *map(id, own.grad_buckets), *own.saved)
        if alike not in known:
            known[alike] = stored_bytes(own, artifact.manifest.optimizer)
        held = known[alike]
        kept = (held.saved,) if sizes is None else ()
        rows.append((own.rank, held.parameters, held.gradients, held.state, *kept))
    columns = ("rank", "parameters", "gradients", "optimizer state", *((KEPT,) if sizes is None else ()))
    title = "bytes stored between steps" + ("; kept for backward: per micro-batch" if sizes is None else "")
    stored = Table("memory", title, columns, tuple(rows), RANKS)
    return [stored] if sizes is None else [stored, kept_table(artifact.program, sizes, size)]


def kept_table(program: Program, sizes: SizeRange, size: int | None = None) -> Table:
    """What ranks keep of a micro-batch of any size, and how much that is at the range's end.

    size: how much it is there, too.
    """
    unit = sizes.unit.value
    shown = [each for each in (size, sizes.high) if each is not None]
    plans = [uniform_plan(sizes, each, [1] * len(sizes.stages)) for each in shown]
    for plan in plans:
        check_plan(plan, sizes)
    alike: dict[tuple[Cell, ...], list[int]] = {}
    for own in program.ranks:
        saved = [] if own.sized is None else own.sized.saved
        at = [saved_bytes(own, plan.pipelines[own.pipeline][0]) for plan in plans]
        alike.setdefault((saved_text(saved), *at), []).append(own.rank)
    rows = [(number_ranges(ranks), *cells) for cells, ranks in alike.items()]
    title = f"bytes kept for backward of a micro-batch of {_counted(sizes)}"
    return Table("kept", title, ("ranks", KEPT, *_columns(shown, unit)), tuple(rows))


def _columns(shown: Sequence[int], unit: str) -> list[str]:
    return [f"at {size:,} {unit}" for size in shown]


def _counted(sizes: SizeRange) -> str:
    if sizes.unit is Count.SAMPLES:
        return "n samples"
    pieces = "; T[0:1 of 2]: of the first of two pieces" if sizes.degrees else ""
    own = ", those of its pipeline" if sizes.groups else ""
    return f"T tokens{own}{pieces}"


def asked_size(program: Program, tokens: int | None, samples: int | None) -> int | None:
    """The size that figures are asked for; an OptionError where the program has none such."""
    given = {Count.TOKENS: tokens, Count.SAMPLES: samples}
    asked = [(unit, size) for unit, size in given.items() if size is not None]
    wrong = [unit for unit, _ in asked if program.sizes is None or program.sizes.unit is not unit]
    if wrong:
        varies = "nothing varies" if program.sizes is None else f"{program.sizes.unit.value} vary"
        raise OptionError(
            f"--{wrong[0].value} is given, and {varies} in this program",
            rule="a size is asked of a program for micro-batches of any size",
            fix="leave it out" if program.sizes is None else f"--{program.sizes.unit.value} N",
        )
    return asked[0][1] if asked else None
