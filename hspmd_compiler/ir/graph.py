"""Row form of a captured joint graph: one plain row per fx node, cheap to walk and to rewrite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch


class Phase(Enum):
    """Which half of the joint graph a row belongs to."""

    FORWARD = "f"
    BACKWARD = "b"


class OriginKind(Enum):
    """What a value is to the user."""

    PARAM = "param"
    BUFFER = "buffer"
    INPUT = "input"
    TANGENT = "tangent"
    RANDOM = "random"
    ACTIVATION = "activation"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from: a parameter or buffer by its name, an input by its key, or an operator.

    RANDOM is the key of a step's random numbers: int64 (seed, step, first sample).
    """

    kind: OriginKind
    name: str = ""


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to the value of row `id`."""

    id: int


Meta: TypeAlias = "tuple[tuple[int, ...], torch.dtype]"


@dataclass(slots=True)
class Row:
    """One value. `op` is `aten.mm.default`, `getitem`, or `placeholder`; ids are list positions.

    shape, dtype: of a single tensor, else None. outs: one Meta (or None) per output of an operator
    with several, read by `getitem` rows. layer: index into `LogicalGraph.layers`, None outside them.
    module: dotted module path. where: user line, package-relative, with its text when known.
    """

    id: int
    op: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    outs: tuple[Meta | None, ...] | None = None
    layer: int | None = None
    module: str = ""
    phase: Phase = Phase.FORWARD
    origin: Origin = Origin(OriginKind.ACTIVATION)
    where: str = ""


@dataclass(frozen=True, slots=True)
class ParamInfo:
    """A parameter or buffer. `aliases` are all its names (tied weights), `name` the first of them.

    grad: row of its gradient, None for a buffer, a frozen parameter, or one that eager leaves
    without a gradient too. persistent: False for a buffer that the model keeps out of its state dict.
    stored: the type that is trained and saved where the graph reads copies of another, `dtype`.
    """

    name: str
    row: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    trainable: bool
    is_buffer: bool
    aliases: tuple[str, ...]
    grad: int | None
    persistent: bool = True
    stored: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class InputInfo:
    """A batch tensor: dim 0 is the sample."""

    name: str
    row: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(slots=True)
class LogicalGraph:
    """The whole training step (forward and backward) on one device, in global shapes.

    batch: global batch size (dim 0 of every input) that the graph was traced at. loss: row of the
    scalar loss. tangent: placeholder row of its gradient, which is 1. mutated: buffer name -> row of
    its new value.
    """

    rows: list[Row]
    params: dict[str, ParamInfo]
    inputs: dict[str, InputInfo]
    loss: int
    tangent: int
    batch: int
    layers: tuple[str, ...] = ()
    mutated: dict[str, int] = field(default_factory=dict)


def moved(row: Row, new: int, args: tuple[object, ...], kwargs: dict[str, object]) -> Row:
    """The row at another place, with what it reads there; `replace` takes five times as long."""
    return Row(
        new,
        row.op,
        args,
        kwargs,
        row.shape,
        row.dtype,
        row.outs,
        row.layer,
        row.module,
        row.phase,
        row.origin,
        row.where,
    )


def refs_of(value: object) -> Iterator[Ref]:
    """Every Ref inside a nested argument, in order."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from refs_of(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from refs_of(item)


def row_inputs(row: Row) -> list[int]:
    """Ids of the rows that `row` reads, in order, with repeats."""
    found: list[int] = []
    _collect_inputs(row.args, found)
    if row.kwargs:
        _collect_inputs(tuple(row.kwargs.values()), found)
    return found


def _collect_inputs(values: Sequence[object], found: list[int]) -> None:
    """As `refs_of`, without its generators: every row of a graph comes by here several times."""
    for value in values:
        if type(value) is Ref:
            found.append(value.id)
        elif isinstance(value, (tuple, list)):
            _collect_inputs(value, found)
        elif isinstance(value, dict):
            _collect_inputs(tuple(value.values()), found)


def map_refs(value: object, change: Callable[[Ref], object]) -> object:
    """`value` with every Ref replaced by `change(ref)`; lists become tuples."""
    if isinstance(value, Ref):
        return change(value)
    if isinstance(value, (tuple, list)):
        return tuple(map_refs(item, change) for item in value)
    if isinstance(value, dict):
        return {key: map_refs(item, change) for key, item in value.items()}
    return value
