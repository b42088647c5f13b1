"""Why there is no plan: pieces of a parameter that do not fit each other, or elements that nobody holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..base.name_groups import shortened
from ..errors import SwitchError
from ..program.boxes import volume
from ..program.program import Shard
from .element_classes import ElementClass
from .kept_state import KeptState

ASPECTS: Mapping[str, str] = {"whole_shape": "shape", "dtype": "type", "compute": "type of copies"}


def check_same_parameters(kept: KeptState, names: tuple[str, str]) -> None:
    """Every parameter is of one shape and one type in both strategies."""
    rows = [
        (name, text)
        for (before, after), alike in kept.names.items()
        if (text := "; ".join(_differences([kept.pieces[n].shard for _, n in (*before, *after)])))
        for name in alike
    ]
    if rows:
        raise SwitchError(
            f"{_title(names)} have other parameters",
            details=shortened(rows),
            rule="a switch moves the state of one model in one precision",
            fix="compile both strategies for the same model, with the same --precision",
        )


def _differences(shards: Iterable[Shard]) -> Iterator[str]:
    for aspect, name in ASPECTS.items():
        values = dict.fromkeys(getattr(shard, aspect) for shard in shards)
        if len(values) > 1:
            yield f"{name} {' and '.join(_text(value) for value in values)}"


def _text(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value) or "none"


def refuse_orphans(classes: Iterable[ElementClass], names: tuple[str, str]) -> None:
    """Every element that a rank needs is held by some rank."""
    lost: dict[str, dict[str, int]] = {}
    for each in classes:
        for part in each.parts if not each.holders else ():
            kinds = lost.setdefault(part.name, {})
            for kind in each.kinds:
                kinds[kind] = kinds.get(kind, 0) + volume(part.boxes)
    if lost:
        rows = [
            (name, ", ".join(f"{n:,} of {kind}" for kind, n in kinds.items())) for name, kinds in lost.items()
        ]
        source = names[0] or "the first strategy"
        raise SwitchError(
            f"elements of {len(lost)} parameters are on no rank that {source} has left",
            details=shortened(rows),
            rule="a switch moves what some rank holds; with ZeRO a moment's element is on one rank alone",
            fix="take these from a checkpoint; without ZeRO another pipeline's ranks hold them too",
        )


def _title(names: tuple[str, str]) -> str:
    return " and ".join(name for name in names if name) or "the strategies"
