"""The data source of an engine: by the name of a factory, or from text files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...errors import RunError
from ...program.program import COMM, COMM_START, ClassProgram, InputKind, Segment, Shard, Value
from ...program.sized.sizes import Count
from ..engine import Engine
from .copied_labels import check_labels
from .data import FactoryData, epoch_seed, load_factory, seed_generators
from .packed_text import PackedText, check_packing, check_shifted
from .sized_data import SizedFactoryData
from .sized_text import SizedPackedText, SizedTextData
from .text_data import IDS, LABELS, TextData, open_text

EMBEDDINGS = frozenset({"aten.embedding.default", "hspmd.vocab_embedding"})
MOVES = frozenset({COMM, COMM_START, "aten._to_copy.default", "aten.view.default"})
JOIN, PART = "aten.cat.default", "aten.slice.Tensor"
"""What gathers a table that is stored in shares, with others or alone."""
CHECK = "hspmd.checked_index"
TABLES = frozenset({InputKind.PARAM, InputKind.STORED})


def factory_source(engine: Engine, name: str, seed: int = 0) -> FactoryData:
    """Batches of `module:factory`: global ones, or this rank's rows where the factory takes `rows`."""
    seed_generators(epoch_seed(seed, 0))  # its module may draw while it is imported
    sizes = engine.active.sizes
    if sizes is not None:
        return SizedFactoryData(load_factory(name), engine.shape, sizes, seed)
    return FactoryData(load_factory(name), engine.shape, seed, engine.rows, engine.keys)


def text_source(
    engine: Engine, files: Sequence[Path], tokenizer: Path | None = None, seed: int = 0, alone: bool = False
) -> TextData:
    """This rank's rows of text; every rank calls this, or one `alone` where the others have theirs.

    RunError where the model would learn to copy; or its vocabulary is too small, if this rank sees it. Where
    each step chooses its samples, all steps have those of the first compile.
    """
    sizes = engine.active.sizes
    if sizes is not None and sizes.unit is Count.TOKENS:
        raise RunError(
            "the text is not packed, and the program takes packed rows",
            rule="with sizes.tokens a row holds whole documents, which are files",
            fix=f"give --pack TOKENS, at most {sizes.high}, or batches by --data module:factory",
        )
    if LABELS in engine.shape.inputs and not alone:
        check_labels(engine.class_program, engine.transport, IDS, LABELS, engine.active.piece)
    tokens = open_text(files, vocabulary_of(engine.class_program, engine.shards), tokenizer)
    if sizes is not None:
        return SizedTextData(tokens, engine.shape, sizes, seed)
    return TextData(tokens, engine.shape, engine.rows, engine.keys, seed)


def packed_source(
    engine: Engine, files: Sequence[Path], room: int, tokenizer: Path | None = None, seed: int = 0
) -> PackedText | SizedPackedText:
    """Whole files, packed: this rank's rows, or whole steps of a program that takes rows of any length.

    RunError where they don't fit the program.
    """
    vocabulary, sizes = vocabulary_of(engine.class_program, engine.shards), engine.active.sizes
    documents = [open_text([path], vocabulary, tokenizer) for path in files]
    check_packing(engine.shape, files, [len(each) for each in documents], room, sizes)
    check_shifted(engine.keys)
    if sizes is not None:
        return SizedPackedText(documents, sizes, tuple(engine.shape.inputs), room, seed)
    return PackedText(documents, engine.shape, engine.rows, engine.keys, seed)


def vocabulary_of(shared: ClassProgram, shards: Sequence[Shard]) -> int | None:
    """Rows of the smallest whole table that a class program looks batch inputs up in; None without one."""
    rows = {shard.name: shard.whole_shape[0] for shard in shards if shard.whole_shape}
    tables = {name for segment in shared.segments for name in _tables(segment)}
    return min((rows[name] for name in tables if name in rows), default=None)


def _tables(segment: Segment) -> Iterator[str]:
    """Parameters in which a segment looks up what comes straight from the batch."""
    params = {item.value: item.name for item in segment.inputs if item.kind in TABLES}
    data = {item.value for item in segment.inputs if item.kind is InputKind.DATA}
    joined: dict[object, Iterator[str]] = {}
    for row in segment.rows:
        if row.op in MOVES and row.args[0] in params:
            params[row.out] = params[row.args[0]]
        elif row.op == JOIN and isinstance(row.args[0], tuple) and params.keys() >= {*row.args[0]}:
            joined[row.out] = iter([params[value] for value in row.args[0]])
        elif row.op in MOVES and row.args[0] in joined:
            joined[row.out] = joined[row.args[0]]
        elif row.op == PART and row.args[0] in joined:  # parts are taken in the order of what was joined
            params[row.out] = next(joined[row.args[0]])
        elif row.op == CHECK and row.args[0] in data:
            data.add(row.out)
        elif row.op in EMBEDDINGS and isinstance(row.args[0], Value) and row.args[1] in data:
            yield from (params[row.args[0]],) if row.args[0] in params else ()
