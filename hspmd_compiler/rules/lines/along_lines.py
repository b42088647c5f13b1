"""The table's lines of operators along dims that a literal names, and of dims in another order."""

from __future__ import annotations

from typing import Any

from ...ir.annotated import AnnotatedValue
from ...ir.graph import Row
from ...layout.layout import Factor, Layout, make_layout
from ..call_rule import CallRule, argument_of
from ..cuts import dim_argument
from ..in_code.index_bounds import in_bounds
from ..in_code.variance_rules import variance
from ..in_code.view_rules import PERMUTED, permutation
from ..op_apply import line, put
from ..op_rule import Along, Kind, Linear, Mean, OpRule, parse
from ..rules import Result, RuleContext

SCATTERS = (
    "aten.scatter.src",
    "aten.scatter.value",
    "aten.scatter_add.default",
    "aten.scatter_reduce.two",
)
PLACED_LINEAR = ("aten.scatter.src", "aten.scatter_add.default")


def gather(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """The result is cut like the index; of a longer table only the first elements count."""
    table, index = values
    dim = dim_argument(row, len(table.layout.dims))
    for place, (own, size) in enumerate(zip(table.layout.shape, index.layout.shape, strict=True)):
        if place != dim and own != size:
            table = _first_of(ctx, table, place, size)
    index = in_bounds(ctx, row, row.args[2], index, table.layout.shape[dim])
    return ctx.emit(row.op, (table, dim, index), results[0])


def _first_of(ctx: RuleContext, value: AnnotatedValue, dim: int, size: int) -> AnnotatedValue:
    dims = (*value.layout.dims[:dim], (Factor(size),), *value.layout.dims[dim + 1 :])
    layout = make_layout(dims, value.layout.partial)
    return ctx.emit("aten.slice.Tensor", (value, dim, 0, size), layout, dtype=value.dtype)


def scatter(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """Target, index and, if it is no number, source."""
    target, index, *rest = values
    dim = dim_argument(row, len(target.layout.dims))
    index = in_bounds(ctx, row, row.args[2], index, target.layout.shape[dim])
    given = rest[0] if rest else row.args[3]
    return ctx.emit(row.op, (target, dim, index, given, *row.args[4:]), results[0], kwargs=row.kwargs)


_ALONG = """
    linalg_vector_norm.default _softmax.default _safe_softmax.default cumsum.default cumprod.default
    logcumsumexp.default amax.default amin.default any.dim any.dims all.dim all.dims argmax.default
    argmin.default logsumexp.default flip.default roll.default
    sort.default sort.stable argsort.default argsort.stable topk.default kthvalue.default mode.default
    median.dim nanmedian.dim max.dim min.dim aminmax.default cummax.default cummin.default prod.dim_int
    count_nonzero.default count_nonzero.dim_IntList nansum.default
    _fft_r2c.default _fft_c2c.default _fft_c2r.default
"""
_OVER_ALL = "max.default min.default median.default nanmedian.default prod.default"
OVER_ALL = tuple(f"aten.{name}" for name in _OVER_ALL.split())
TRIANGLES = ("aten.tril.default", "aten.triu.default")
_LINEAR = "cumsum.default flip.default roll.default _fft_r2c.default _fft_c2c.default _fft_c2r.default"
_DIMS = {"flip.default": "dims", "roll.default": "dims"}
"""What the argument is called, if not `dim`."""

for _op in _ALONG.split():
    _passes = Linear.BATCH if _op in _LINEAR.split() else Linear.NO
    line(f"aten.{_op}", "... -> ...", along=Along(_DIMS.get(_op, "dim")), linear=_passes)
for _op in OVER_ALL:
    line(_op, "... -> ...", along=Along())
for _op in TRIANGLES:
    line(_op, "... -> ...", along=Along(last=2), linear=Linear.BATCH, empty_ok=True)
line(
    "aten._softmax_backward_data.default",
    "..., ... -> ...",
    along=Along("dim"),
    linear=Linear.FIRST,
    empty_ok=True,
)
for _op, _dim in (("aten.sum.dim_IntList", "dim"), ("aten.sum.default", "")):
    line(_op, "... -> ...", along=Along(_dim), along_kind=Kind.SUM, linear=Linear.ONE, empty_ok=True)
for _op, _dim in (("aten.mean.dim", "dim"), ("aten.mean.default", "")):
    line(
        _op,
        "... -> ...",
        along=Along(_dim),
        along_kind=Kind.SUM,
        linear=Linear.BATCH,
        scale=Mean("aten.sum.dim_IntList"),
        empty_ok=True,
    )
for _op in ("aten.var.correction", "aten.var_mean.correction"):
    line(_op, "... -> ...", along=Along("dim"), code=variance, flops=3)

for _op in SCATTERS:
    _operands = "..., ..." if _op == "aten.scatter.value" else "..., ..., ..."
    _passes = Linear.JOINTLY if _op in PLACED_LINEAR else Linear.NO
    _more = dict[str, Any](linear=_passes, carries=(0, 2), emit=scatter)
    line(_op, f"{_operands} -> ...", along=Along("dim"), first_only=True, **_more)
line(
    "aten.slice_scatter.default",
    "..., ... -> ...",
    along=Along("dim"),
    first_only=True,
    linear=Linear.JOINTLY,
    empty_ok=True,
)


def _letters(row: Row) -> list[str]:
    return [f"d{place}" for place in range(len(row.shape or ()))]


def _gather(row: Row) -> OpRule:
    """The index has its own dim where the table is picked along."""
    table = _letters(row)
    index = list(table)
    if table:
        dim = dim_argument(row, len(table))
        index[dim] = "picked"
    text = f"{' '.join(table)}, {' '.join(index)} -> {' '.join(index)}"
    whole = " ".join(set(table) - set(index))
    return parse(row.op, text, whole=whole, first_only=True, linear=Linear.BATCH, emit=gather)


def _select_scatter(row: Row) -> OpRule:
    letters = _letters(row)
    dim = dim_argument(row, len(letters))
    whole, rest = " ".join(letters), " ".join(letters[:dim] + letters[dim + 1 :])
    more = dict[str, Any](linear=Linear.JOINTLY, empty_ok=True)
    return parse(row.op, f"{whole}, {rest} -> {whole}", whole=letters[dim], **more)


def _permuted(row: Row) -> OpRule:
    """Letters in the order that the literals say."""
    letters = _letters(row)
    order = permutation(row, len(letters))
    given = dict(zip(order, letters, strict=True))
    source = " ".join(given[dim] for dim in sorted(given))
    return parse(row.op, f"{source} -> {' '.join(letters)}", linear=Linear.ONE, empty_ok=True)


put(OpRule("aten.gather.default", variants=_gather))
put(OpRule("aten.select_scatter.default", variants=_select_scatter))
for _op in PERMUTED:
    put(OpRule(_op, variants=_permuted))


def _histogram(row: Row) -> OpRule:
    """Counts between given bounds add up over pieces; without bounds they are the whole value's own."""
    bounds = argument_of(row, "min") != argument_of(row, "max")
    kind = Kind.SUM if bounds else Kind.WHOLE
    return parse(row.op, "... -> bins", along=Along(), along_kind=kind, empty_ok=True)


put(OpRule("aten.histc.default", variants=_histogram))
