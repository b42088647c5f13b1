"""How operators are called that work along some dims, or over all, for the brute-force test of rules."""

from __future__ import annotations

from collections.abc import Iterator

from hspmd_compiler.rules.lines.along_lines import OVER_ALL
from hspmd_compiler.verify.rules.split_operands import Operand

from .rule_cases import COUNT, FLAG, FULL, WEIGHT, Case, picked

ONE_RESULT: list[tuple[str, Operand, tuple[object, ...], dict[str, object]]] = [
    ("logcumsumexp.default", FULL, (1,), {}),
    ("logcumsumexp.default", FULL, (-1,), {}),
    ("argmin.default", FULL, (-1,), {}),
    ("argmin.default", FULL, (1, True), {}),
    ("any.dims", FLAG, ((1, 2),), {}),
    ("all.dims", FLAG, ((-1,), True), {}),
    ("roll.default", FULL, ((1,), (1,)), {}),
    ("roll.default", FULL, ((2, -1), (2, 1)), {}),
    ("argsort.default", FULL, (), {}),
    ("argsort.default", FULL, (1, True), {}),
    ("argsort.stable", COUNT, (), {"stable": True}),
    ("prod.dim_int", FULL, (1,), {}),
    ("prod.dim_int", FULL, (-1, True), {}),
    ("count_nonzero.default", COUNT, (1,), {}),
    ("count_nonzero.dim_IntList", COUNT, ((1, -1),), {}),
    ("nansum.default", FULL, ((2,),), {}),
]
SEVERAL_RESULTS: list[tuple[str, Operand, tuple[object, ...], dict[str, object]]] = [
    ("sort.default", FULL, (), {}),
    ("sort.stable", COUNT, (), {"stable": True}),
    ("sort.stable", COUNT, (), {"stable": True, "dim": 1, "descending": True}),
    ("topk.default", FULL, (2,), {}),
    ("topk.default", FULL, (3, 1, False), {}),
    ("kthvalue.default", FULL, (2,), {}),
    ("kthvalue.default", FULL, (3, 1, True), {}),
    ("mode.default", COUNT, (), {}),
    ("mode.default", COUNT, (1, True), {}),
    ("median.dim", FULL, (1,), {}),
    ("nanmedian.dim", FULL, (-1, True), {}),
    ("max.dim", FULL, (1,), {}),
    ("min.dim", FULL, (-1, True), {}),
    ("aminmax.default", FULL, (), {"dim": 1}),
    ("aminmax.default", FULL, (), {"dim": -1, "keepdim": True}),
    ("cummax.default", FULL, (1,), {}),
    ("cummin.default", FULL, (-1,), {}),
    ("var_mean.correction", FULL, ((1,),), {}),
    ("var_mean.correction", FULL, ((-1, 1),), {"correction": 0, "keepdim": True}),
]


def along_dims() -> Iterator[Case]:
    """All of them; those over all dims meet samples."""
    for name, operand, rest, more in ONE_RESULT:
        op = f"aten.{name}"
        yield Case(op, lambda s, take, op=op, o=operand, r=rest, m=more: s.call(op, (take(o), *r), m))  # type: ignore[misc]
    for name, operand, rest, more in SEVERAL_RESULTS:
        op = f"aten.{name}"
        yield Case(
            op,
            lambda s, take, op=op, o=operand, r=rest, m=more: picked(s, op, (take(o), *r), 2, m),  # type: ignore[misc]
        )
    for op in (*OVER_ALL, "aten.argmin.default", "aten.argmax.default", "aten.nansum.default"):
        for operand in (FULL, WEIGHT):
            yield Case(op, lambda s, take, op=op, o=operand: s.call(op, (take(o),)), coupled=True)  # type: ignore[misc]
    for rest in (((0,),), ((0, -1), 0, True), ((0, 1, 2), 2), ()):
        names = dict(zip(("dim", "correction", "keepdim"), rest, strict=False))
        more = {name: value for name, value in names.items() if name != "dim"}
        dims = (names["dim"],) if rest else ()
        op = "aten.var.correction"
        yield Case(op, lambda s, take, op=op, d=dims, m=more: s.call(op, (take(FULL), *d), m))  # type: ignore[misc]
        op = "aten.var_mean.correction"
        yield Case(op, lambda s, take, op=op, d=dims, m=more: picked(s, op, (take(FULL), *d), 2, m))  # type: ignore[misc]
    for bounds in ((5, -1, 1), (4,)):
        op = "aten.histc.default"
        yield Case(op, lambda s, take, op=op, b=bounds: s.call(op, (take(FULL), *b)))  # type: ignore[misc]
    yield Case(
        "aten.roll.default", lambda s, take: s.call("aten.roll.default", (take(FULL), (5,))), coupled=True
    )
