"""What a program says of whole tensors, and of the batch, is what the graph says of them."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import VerifyError
from ..ir.graph import LogicalGraph, ParamInfo
from ..ir.type_text import dtype_name
from ..program.program import Program, Shard

FIX = "report it with the strategy: the compiler made a wrong program"
TableProblem = tuple[str, str]


def check_tables(program: Program, graph: LogicalGraph) -> None:
    """Raise one VerifyError for all parameters, names and inputs in which a program differs."""
    problems = [*_inputs(program, graph), *_aliases(program, graph), *_parameters(program, graph)]
    if problems:
        raise VerifyError(
            "the program's tables are not those of the model",
            details=problems[:20],
            rule="shape, type, and whether a tensor is trained and saved, are those of the traced model",
            fix=FIX,
        )


def _inputs(program: Program, graph: LogicalGraph) -> Iterator[TableProblem]:
    if program.batch != graph.batch:
        yield "batch", f"{program.batch}, the graph has {graph.batch}"
    wanted = {name: (info.shape, dtype_name(info.dtype)) for name, info in graph.inputs.items()}
    for name in sorted(wanted.keys() | program.inputs.keys()):
        if wanted.get(name) != program.inputs.get(name):
            yield f"input {name}", f"{program.inputs.get(name)}, the graph has {wanted.get(name)}"


def _aliases(program: Program, graph: LogicalGraph) -> Iterator[TableProblem]:
    wanted = {alias: info.name for info in graph.params.values() for alias in info.aliases}
    for alias in sorted(wanted.keys() | program.aliases.keys()):
        if wanted.get(alias) != program.aliases.get(alias):
            yield alias, f"tied to {program.aliases.get(alias)}, in the graph to {wanted.get(alias)}"


def _parameters(program: Program, graph: LogicalGraph) -> Iterator[TableProblem]:
    held: set[str] = set()
    judged: set[int] = set()
    for own in program.ranks:
        for shard in own.shards:
            held.add(shard.name)
            if id(shard) not in judged:
                judged.add(id(shard))
                yield from ((shard.name, f"rank {own.rank}: {text}") for text in _shard(shard, graph))
    yield from ((name, "no rank has it") for name in graph.params if name not in held)


def _shard(shard: Shard, graph: LogicalGraph) -> Iterator[str]:
    info = graph.params.get(shard.name)
    if info is None:
        yield "the graph has no such parameter"
        return
    for what, found, wanted in _facts(shard, info):
        if found != wanted:
            yield f"{what} {found}, in the graph {wanted}"


def _facts(shard: Shard, info: ParamInfo) -> Iterator[tuple[str, object, object]]:
    yield "shape", shard.whole_shape, info.shape
    yield "type", shard.dtype, dtype_name(info.stored or info.dtype)
    yield "computed in", shard.local_dtype, dtype_name(info.dtype)
    yield "trainable", shard.trainable, info.trainable
    yield "is_buffer", shard.is_buffer, info.is_buffer
    yield "persistent", shard.persistent, info.persistent
