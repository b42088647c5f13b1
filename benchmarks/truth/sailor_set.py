"""Sailor's points priced under every form, and by Sailor's own formula: rows, and scores of each set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hspmd_compiler.errors import EstimateError
from truth.forms import DOCUMENTED, FORMS, Form
from truth.left_out import memory_reason, time_reason
from truth.point_file import Point
from truth.sailor_formula import sailor_peak_bytes, sailor_step_s
from truth.sailor_memory import peak_bytes
from truth.sailor_price import Price, price
from truth.sailor_tables import SailorTables
from truth.scores import Pair, Score, score


@dataclass(frozen=True, slots=True)
class PointRow:
    """One point with its prices. apart, memory_apart: why it is not in the scores; empty: it is."""

    point: Point
    prices: Mapping[Form, Price]
    sailor_s: float | None
    peak: float
    sailor_peak: float
    apart: str
    memory_apart: str

    @property
    def documented(self) -> Price:
        return self.prices[DOCUMENTED]


def price_points(tables: SailorTables, points: Sequence[Point]) -> tuple[list[PointRow], list[str]]:
    """A row a point, and a line for each that can't be priced."""
    rows, failed = [], []
    for point in points:
        try:
            rows.append(_row(tables, point, points))
        except EstimateError as error:
            failed.append(f"{point.name}: {error.what}")
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            failed.append(f"{point.name}: the tables lack something ({type(error).__name__}: {error})")
    return rows, failed


def _row(tables: SailorTables, point: Point, points: Sequence[Point]) -> PointRow:
    try:
        sailor: float | None = sailor_step_s(tables, point)
    except EstimateError:
        sailor = None
    return PointRow(
        point,
        {form: price(tables, point, form.semantics, form.by_nic) for form in FORMS},
        sailor,
        peak_bytes(tables, point),
        sailor_peak_bytes(tables, point),
        time_reason(tables, point, points),
        memory_reason(tables, point, points),
    )


@dataclass(frozen=True, slots=True)
class PointSet:
    """The rows of one data set."""

    name: str
    rows: tuple[PointRow, ...]

    @property
    def counted(self) -> tuple[PointRow, ...]:
        """Those whose time counts."""
        return tuple(row for row in self.rows if not row.apart)

    def time_pairs(self, form: Form = DOCUMENTED) -> list[Pair]:
        return [(row.prices[form].step_s, row.point.step_s) for row in self.counted]

    def time(self, form: Form = DOCUMENTED) -> Score:
        return score(self.time_pairs(form))

    def sailor(self) -> Score:
        """Of those that Sailor's formula prices."""
        rows = [row for row in self.counted if row.sailor_s is not None]
        return score([(row.sailor_s or 0.0, row.point.step_s) for row in rows])

    def closed_form(self, form: Form) -> Score:
        """The inner-loop formula against the simulation."""
        return score([(row.prices[form].closed_form_s, row.prices[form].step_s) for row in self.counted])

    def memory(self, sailor: bool = False) -> Score:
        """Of peak memory; empty where no point of the set counts."""
        return score(
            [
                (row.sailor_peak if sailor else row.peak, row.point.peak_bytes)
                for row in self.rows
                if not row.memory_apart and row.point.peak_bytes
            ]
        )


def sets_of(rows: Sequence[PointRow]) -> list[PointSet]:
    """By data set, in the order of their names."""
    names = sorted({row.point.data_set for row in rows})
    return [PointSet(name, tuple(row for row in rows if row.point.data_set == name)) for name in names]
