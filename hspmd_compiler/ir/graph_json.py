"""A logical graph as plain JSON values, one list entry a row, and back with every value checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, TypeAlias

import torch

from ..base import codec
from ..base.codec import Literals, Tag, damaged, natural
from ..base.typed import As, Converted, Place, Unfit, ValueRule
from ..errors import ArtifactError, InternalError
from .graph import InputInfo, LogicalGraph, Meta, Origin, OriginKind, ParamInfo, Phase, Ref, Row, row_inputs
from .type_text import dtype_name

Json = dict[str, object]

FILE = "graph.json"
NAMESPACES = ("aten", "hspmd")
OTHER_OPS = ("getitem", "placeholder")


def _is_allowed(op: str) -> bool:
    parts = op.split(".")
    return op in OTHER_OPS or (
        len(parts) == 3 and parts[0] in NAMESPACES and all(part.isidentifier() for part in parts)
    )


def _dtype(name: object) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise Unfit("a dtype of torch", name)
    return found


def _memory_format(name: object) -> torch.memory_format:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.memory_format):
        raise Unfit("a memory format of torch", name)
    return found


def _meta(form: tuple[object, ...]) -> Meta:
    if not form:
        raise Unfit("a dtype, then sizes", form)
    for place, size in enumerate(form[1:], 1):
        if type(size) is not int:
            raise Unfit("an integer", size, (place,))
    sizes: Any = form[1:]
    return sizes, _dtype(form[0])


LITERALS = Literals(
    Tag("ref", Ref, lambda ref: ref.id, lambda held: Ref(natural(held))),
    Tag("dtype", torch.dtype, dtype_name, _dtype),
    Tag("memory_format", torch.memory_format, lambda it: str(it).removeprefix("torch."), _memory_format),
)
Literal: TypeAlias = Annotated[object, LITERALS]
Dtype: TypeAlias = Annotated[torch.dtype, As(object, _dtype)]
MetaForm: TypeAlias = Annotated[tuple[Any, ...], Converted(_meta)]
InputForm: TypeAlias = tuple[str, int, tuple[int, ...], Dtype]
ParamForm: TypeAlias = tuple[
    str, int, tuple[int, ...], Dtype, bool, bool, tuple[str, ...], int | None, bool, Dtype | None
]
RowForm: TypeAlias = tuple[
    Annotated[str, ValueRule(_is_allowed, f"an operator of {' or '.join(NAMESPACES)}")],
    tuple[Literal, ...],
    dict[str, Literal],
    MetaForm | None,
    tuple[MetaForm | None, ...] | None,
    int | None,
    int,
    Phase,
    tuple[OriginKind, str] | None,
    int,
]


@dataclass(frozen=True, slots=True)
class GraphForm:
    """The JSON of a graph. modules, lines: texts that repeat; a row names them by index."""

    batch: int
    loss: int
    tangent: int
    layers: tuple[str, ...]
    mutated: dict[str, int]
    params: tuple[ParamForm, ...]
    inputs: tuple[InputForm, ...]
    modules: tuple[str, ...]
    lines: tuple[str, ...]
    rows: tuple[RowForm, ...]


def encode(graph: LogicalGraph) -> Json:
    """JSON values; module paths and user lines, which repeat, are kept once, in tables."""
    modules, lines = _Table(), _Table()
    rows = [_encode_row(row, modules, lines) for row in graph.rows]
    return {
        "batch": graph.batch,
        "loss": graph.loss,
        "tangent": graph.tangent,
        "layers": list(graph.layers),
        "mutated": dict(graph.mutated),
        "params": [_encode_fields(param) for param in graph.params.values()],
        "inputs": [_encode_fields(item) for item in graph.inputs.values()],
        "modules": list(modules.index),
        "lines": list(lines.index),
        "rows": rows,
    }


@dataclass(slots=True)
class _Table:
    index: dict[str, int] = field(default_factory=dict)

    def __call__(self, text: str) -> int:
        return self.index.setdefault(text, len(self.index))


def _encode_row(row: Row, modules: _Table, lines: _Table) -> list[object]:
    origin = [row.origin.kind.value, row.origin.name] if row.op == "placeholder" else None
    value = None if row.shape is None or row.dtype is None else _encode_meta((row.shape, row.dtype))
    outs = None if row.outs is None else [_encode_meta(meta) for meta in row.outs]
    return [
        row.op,
        [_encode_literal(arg) for arg in row.args],
        {name: _encode_literal(arg) for name, arg in row.kwargs.items()},
        value,
        outs,
        row.layer,
        modules(row.module),
        row.phase.value,
        origin,
        lines(row.where),
    ]


def _encode_meta(meta: Meta | None) -> list[object] | None:
    return None if meta is None else [dtype_name(meta[1]), *meta[0]]


def _encode_fields(info: ParamInfo | InputInfo) -> list[object]:
    held = (getattr(info, item.name) for item in fields(info))
    return [dtype_name(each) if isinstance(each, torch.dtype) else codec.encode(each) for each in held]


def _encode_literal(value: object) -> object:
    try:
        return LITERALS.encode(value)
    except InternalError as error:
        raise ArtifactError(f"an operator has the argument {value!r}, which can't be stored") from error


def decode(data: object) -> LogicalGraph:
    """The graph, or an ArtifactError that lists what is wrong with it."""
    form = codec.decode(GraphForm, data, FILE)
    wrong = list(_unlisted(form))
    if wrong:
        raise damaged(FILE, wrong)
    params, inputs = [ParamInfo(*item) for item in form.params], [InputInfo(*item) for item in form.inputs]
    graph = LogicalGraph(
        [_row(place, item, form) for place, item in enumerate(form.rows)],
        {param.name: param for param in params},
        {item.name: item for item in inputs},
        form.loss,
        form.tangent,
        form.batch,
        form.layers,
        form.mutated,
    )
    wrong = [((name,), found, text) for name, found, text in _misplaced(graph)]
    if wrong:
        raise damaged(FILE, wrong)
    return graph


def _row(place: int, item: RowForm, form: GraphForm) -> Row:
    op, args, kwargs, value, outs, layer, module, phase, origin, line = item
    shape, dtype = (None, None) if value is None else value
    found = Origin(OriginKind.ACTIVATION) if origin is None else Origin(*origin)
    where = form.modules[module], phase, found, form.lines[line]
    return Row(place, op, args, kwargs, shape, dtype, outs, layer, *where)


def _unlisted(form: GraphForm) -> Iterator[tuple[Place, object, str]]:
    """Entries of the tables of texts that aren't there."""
    for place, row in enumerate(form.rows):
        for texts, name, column, index in (
            (form.modules, "modules", 6, row[6]),
            (form.lines, "lines", 9, row[9]),
        ):
            if not 0 <= index < len(texts):
                yield ("rows", place, column), index, f"an entry of {name}, which has {len(texts)}"


def _misplaced(graph: LogicalGraph) -> Iterator[tuple[str, object, str]]:
    """Ids that name no row, or a later one than where they are read."""
    count = len(graph.rows)
    for row in graph.rows:
        for read in row_inputs(row):
            if not 0 <= read < row.id:
                yield f"rows[{row.id}]", read, f"{row.op} reads an earlier value"
        if row.layer is not None and not 0 <= row.layer < len(graph.layers):
            yield f"rows[{row.id}]", row.layer, f"one of {len(graph.layers)} layers"
    named = {"loss": graph.loss, "tangent": graph.tangent, **graph.mutated}
    named |= {p.name: p.row for p in graph.params.values()} | {i.name: i.row for i in graph.inputs.values()}
    named |= {f"gradient of {p.name}": p.grad for p in graph.params.values() if p.grad is not None}
    for name, found in named.items():
        if not 0 <= found < count:
            yield name, found, f"one of {count} rows"
