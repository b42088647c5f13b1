"""The table's lines of operators along dims that a literal names, and of dims in another order."""

from __future__ import annotations

from typing import Any

from ...ir.graph import Row
from ..call_rule import argument_of
from ..in_code.scatter_rules import LINEAR as PLACED_LINEAR
from ..in_code.scatter_rules import SCATTERS, gather, scatter
from ..in_code.variance_rules import variance
from ..op_apply import line, put
from ..op_rule import Along, Kind, Linear, Mean, OpRule, parse

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
_LINEAR = [
    "cumsum.default",
    "flip.default",
    "roll.default",
    "_fft_r2c.default",
    "_fft_c2c.default",
    "_fft_c2r.default",
]
_DIMS = {"flip.default": "dims", "roll.default": "dims"}
"""What the argument is called, if not `dim`."""

for _op in _ALONG.split():
    _passes = Linear.BATCH if _op in _LINEAR else Linear.NO
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
line("aten.searchsorted.Tensor", "bound, ... -> ...", whole="bound")

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
        dim = int(row.args[1]) % len(table)  # type: ignore[call-overload]
        index[dim] = "picked"
    text = f"{' '.join(table)}, {' '.join(index)} -> {' '.join(index)}"
    whole = " ".join(set(table) - set(index))
    return parse(row.op, text, whole=whole, first_only=True, linear=Linear.BATCH, emit=gather)


def _select_scatter(row: Row) -> OpRule:
    letters = _letters(row)
    dim = int(row.args[2]) % len(letters)  # type: ignore[call-overload]
    whole, rest = " ".join(letters), " ".join(letters[:dim] + letters[dim + 1 :])
    more = dict[str, Any](linear=Linear.JOINTLY, empty_ok=True)
    return parse(row.op, f"{whole}, {rest} -> {whole}", whole=letters[dim], **more)


def _permuted(row: Row) -> OpRule:
    """Letters in the order that the literals say."""
    letters = _letters(row)
    rank = max(1, len(letters))
    order = list(range(len(letters)))
    if row.op == "aten.t.default":
        order.reverse()
    elif row.op == "aten.transpose.int":
        first, second = (int(dim) % rank for dim in row.args[1:3])  # type: ignore[call-overload]
        if letters:
            order[first], order[second] = order[second], order[first]
    else:
        order = [int(dim) % rank for dim in row.args[1]]  # type: ignore[attr-defined]
    given = dict(zip(order, letters, strict=True))
    source = " ".join(given[dim] for dim in sorted(given))
    return parse(row.op, f"{source} -> {' '.join(letters)}", linear=Linear.ONE, empty_ok=True)


put(OpRule("aten.gather.default", variants=_gather))
put(OpRule("aten.select_scatter.default", variants=_select_scatter))
for _op in ("aten.t.default", "aten.transpose.int", "aten.permute.default"):
    put(OpRule(_op, variants=_permuted))


def _histogram(row: Row) -> OpRule:
    """Counts between given bounds add up over pieces; without bounds they are the whole value's own."""
    bounds = argument_of(row, "min") != argument_of(row, "max")
    kind = Kind.SUM if bounds else Kind.WHOLE
    return parse(row.op, "... -> bins", along=Along(), along_kind=kind, empty_ok=True)


put(OpRule("aten.histc.default", variants=_histogram))
