"""A logical graph as plain JSON values, one list entry a row, and back with every value checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

import torch

from ..errors import ArtifactError
from .ir import InputInfo, LogicalGraph, Meta, Origin, OriginKind, ParamInfo, Phase, Ref, Row, row_inputs
from .type_text import dtype_name

Json = dict[str, object]
Read = TypeVar("Read")

NAMESPACES = ("aten", "hspmd")
OTHER_OPS = ("getitem", "placeholder")
_REF, _DTYPE, _FLOAT, _MEMORY_FORMAT = "ref", "dtype", "float", "memory_format"
_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_CLASHES_SHOWN = 10


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
        "params": [_encode_param(p) for p in graph.params.values()],
        "inputs": [[i.name, i.row, list(i.shape), dtype_name(i.dtype)] for i in graph.inputs.values()],
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


def _encode_param(param: ParamInfo) -> list[object]:
    flags = [param.trainable, param.is_buffer]
    return [
        param.name,
        param.row,
        list(param.shape),
        dtype_name(param.dtype),
        *flags,
        list(param.aliases),
        param.grad,
        param.persistent,
        None if param.stored is None else dtype_name(param.stored),
    ]


def _encode_literal(value: object) -> object:
    if type(value) is Ref:
        return {_REF: value.id}
    match value:
        case torch.dtype():
            return {_DTYPE: dtype_name(value)}
        case torch.memory_format():
            return {_MEMORY_FORMAT: str(value).removeprefix("torch.")}
        case float() if not math.isfinite(value):
            return {_FLOAT: str(value)}
        case tuple() | list():
            return [_encode_literal(item) for item in value]
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise ArtifactError(f"an operator has the argument {value!r}, which can't be stored")


def decode(data: object) -> LogicalGraph:
    """The graph, or an ArtifactError that lists what is wrong with its rows."""
    if not isinstance(data, Mapping):
        raise ArtifactError("the logical graph is not a JSON object")
    reader = _Reader(data)
    graph = reader.graph()
    reader.clashes += _misplaced(graph)
    if reader.clashes:
        raise ArtifactError(
            "the logical graph is damaged",
            details=reader.clashes[:_CLASHES_SHOWN],
            fix="compile the model again",
        )
    return graph


class _Reader:
    """Reads parts of the JSON object and notes, as (place, text), those that don't fit."""

    def __init__(self, data: Mapping[str, object]) -> None:
        self.data = data
        self.clashes: list[tuple[str, str]] = []

    def graph(self) -> LogicalGraph:
        modules, lines = self._texts("modules"), self._texts("lines")
        rows = self._each("rows", lambda place, item: _row(place, item, modules, lines))
        params = self._each("params", lambda _, item: _param(item))
        inputs = self._each("inputs", lambda _, item: _input(item))
        mutated = self.data.get("mutated")
        return LogicalGraph(
            rows,
            {p.name: p for p in params},
            {i.name: i for i in inputs},
            self._integer("loss"),
            self._integer("tangent"),
            self._integer("batch"),
            tuple(self._texts("layers")),
            self._one("mutated", lambda: {_text(k): _int(v) for k, v in _object(mutated).items()}, {}),
        )

    def _each(self, name: str, read: Callable[[int, list[object]], Read]) -> list[Read]:
        found: list[Read] = []
        items: list[object] = self._one(name, lambda: _list(self.data.get(name)), [])
        for place, item in enumerate(items):
            try:
                found.append(read(place, _list(item)))
            except (TypeError, ValueError, KeyError, IndexError) as error:
                self.clashes.append((f"{name}[{place}]", f"{error} in {str(item)[:120]}"))
        return found

    def _texts(self, name: str) -> list[str]:
        return self._one(name, lambda: [_text(item) for item in _list(self.data.get(name))], [])

    def _integer(self, name: str) -> int:
        return self._one(name, lambda: _int(self.data.get(name)), 0)

    def _one(self, name: str, read: Callable[[], Read], otherwise: Read) -> Read:
        try:
            return read()
        except TypeError as error:
            self.clashes.append((name, str(error)))
            return otherwise


def _row(place: int, item: list[object], modules: list[str], lines: list[str]) -> Row:
    op, args, kwargs, value, outs, layer, module, phase, origin, line = item
    meta = _meta(value)
    return Row(
        place,
        _op(_text(op)),
        tuple(_literal(arg) for arg in _list(args)),
        {_text(name): _literal(arg) for name, arg in _object(kwargs).items()},
        None if meta is None else meta[0],
        None if meta is None else meta[1],
        None if outs is None else tuple(_meta(out) for out in _list(outs)),
        None if layer is None else _int(layer),
        modules[_int(module)],
        Phase(phase),
        _origin(origin),
        lines[_int(line)],
    )


def _op(op: str) -> str:
    parts = op.split(".")
    if op in OTHER_OPS or (
        len(parts) == 3 and parts[0] in NAMESPACES and all(p.isidentifier() for p in parts)
    ):
        return op
    raise ValueError(f"operator {op!r} is not allowed")


def _origin(value: object) -> Origin:
    if value is None:
        return Origin(OriginKind.ACTIVATION)
    kind, name = _list(value)
    return Origin(OriginKind(kind), _text(name))


def _meta(value: object) -> Meta | None:
    if value is None:
        return None
    name, *shape = _list(value)
    return tuple(_int(n) for n in shape), _torch(name, torch.dtype)


def _param(item: list[object]) -> ParamInfo:
    name, row, shape, dtype, trainable, is_buffer, aliases, grad, persistent, stored = item
    if not (isinstance(trainable, bool) and isinstance(is_buffer, bool) and isinstance(persistent, bool)):
        raise TypeError("trainable, is_buffer or persistent is not true or false")
    return ParamInfo(
        _text(name),
        _int(row),
        tuple(_int(n) for n in _list(shape)),
        _torch(dtype, torch.dtype),
        trainable,
        is_buffer,
        tuple(_text(alias) for alias in _list(aliases)),
        None if grad is None else _int(grad),
        persistent,
        None if stored is None else _torch(stored, torch.dtype),
    )


def _input(item: list[object]) -> InputInfo:
    name, row, shape, dtype = item
    return InputInfo(_text(name), _int(row), tuple(_int(n) for n in _list(shape)), _torch(dtype, torch.dtype))


def _literal(value: object) -> object:
    if isinstance(value, list):
        return tuple(_literal(item) for item in value)
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "ref":
            return Ref(_int(content))
        case "dtype":
            return _torch(content, torch.dtype)
        case "memory_format":
            return _torch(content, torch.memory_format)
        case "float":
            return _FLOATS[content]
        case _:
            raise ValueError(f"argument of unknown kind {kind!r}")


def _torch(name: object, kind: type[Read]) -> Read:
    found = getattr(torch, _text(name), None)
    if not isinstance(found, kind):
        raise ValueError(f"{name!r} is no {kind.__name__}")
    return found


def _list(value: object) -> list[object]:
    return cast(list[object], _typed(value, list))


def _object(value: object) -> dict[object, object]:
    return cast(dict[object, object], _typed(value, dict))


def _text(value: object) -> str:
    return cast(str, _typed(value, str))


def _int(value: object) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return cast(int, _typed(value, int))


def _typed(value: object, kind: type) -> object:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not a {kind.__name__}")
    return value


def _misplaced(graph: LogicalGraph) -> list[tuple[str, str]]:
    """Ids that name no row, or a later one than where they are read."""
    count = len(graph.rows)
    bad = [
        (f"rows[{row.id}]", f"{row.op} reads %{i}, which is not an earlier value")
        for row in graph.rows
        for i in row_inputs(row)
        if not 0 <= i < row.id
    ]
    bad += [
        (f"rows[{row.id}]", f"layer {row.layer} of {len(graph.layers)}")
        for row in graph.rows
        if row.layer is not None and not 0 <= row.layer < len(graph.layers)
    ]
    named = {"loss": graph.loss, "tangent": graph.tangent, **graph.mutated}
    named |= {p.name: p.row for p in graph.params.values()} | {i.name: i.row for i in graph.inputs.values()}
    named |= {f"gradient of {p.name}": p.grad for p in graph.params.values() if p.grad is not None}
    return bad + [(name, f"names row {i} of {count}") for name, i in named.items() if not 0 <= i < count]
