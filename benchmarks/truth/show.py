"""The tables of prices against measurements, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from truth.amp_set import AMP_FORMS, MAIN, TrialSet
from truth.bars import Bar
from truth.forms import DOCUMENTED, FORMS
from truth.published import PUBLISHED
from truth.sailor_set import PointSet
from truth.scores import Score, error

SCORES = ("points", "MAPE", "worst", "bias", "rank corr.")


def _cells(found: Score) -> tuple[str, ...]:
    if not found.points:
        return ("0", "-", "-", "-", "-")
    return (
        str(found.points),
        f"{found.mape:.1%}",
        f"{found.worst:+.1%}",
        f"{found.bias:+.1%}",
        f"{found.rank:.2f}",
    )


def _table(title: str, first: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def show_set(console: Console, data: PointSet, closed_forms: bool) -> None:
    """One data set of Sailor's: every form, Sailor's formula, memory, what others reach, what is apart."""
    table = _table(f"{data.name}: seconds a step", "form", SCORES)
    for form in FORMS:
        table.add_row(form.name + (" *" if form == DOCUMENTED else ""), *_cells(data.time(form)))
    table.add_row("Sailor's formula, restated", *_cells(data.sailor()))
    console.print(table)
    if closed_forms:
        table = _table(f"{data.name}: closed form against the simulation", "form", SCORES)
        for form in FORMS:
            table.add_row(form.name, *_cells(data.closed_form(form)))
        console.print(table)
    if data.memory().points:
        table = _table(f"{data.name}: peak memory", "form", SCORES)
        table.add_row("ours", *_cells(data.memory()))
        table.add_row("Sailor's formula, restated", *_cells(data.memory(sailor=True)))
        console.print(table)
    for line in PUBLISHED.get(data.name, ()):
        console.print(f"  published: {line}", highlight=False)
    _show_apart(console, data)
    console.print()


def _show_apart(console: Console, data: PointSet) -> None:
    """Points that do not count and why, one line a reason, and what was repaired in reading."""
    told: dict[str, list[str]] = {}
    for row in data.rows:
        name = row.point.name
        if row.apart:
            missed = error((row.documented.step_s, row.point.step_s))
            told.setdefault(f"apart: {row.apart}", []).append(f"{name} ({missed:+.1%})")
        if row.memory_apart and row.point.peak_bytes:
            missed = error((row.peak, row.point.peak_bytes))
            told.setdefault(f"memory apart: {row.memory_apart}", []).append(f"{name} ({missed:+.1%})")
        for note in row.point.notes:
            told.setdefault(note, []).append(name)
    for reason, names in told.items():
        console.print(f"  {reason}: {', '.join(names)}", highlight=False)


def show_points(console: Console, data: PointSet, cost: str) -> None:
    """Every point: measured and predicted, and what the step is made of."""
    columns = ("measured s", "predicted s", "error", "pipeline s", "reduction s", "measured", "memory")
    table = _table(f"{data.name}, {'by Sailor' if cost == 'sailor' else DOCUMENTED.name}", "point", columns)
    for row in data.rows:
        price, point = row.documented, row.point
        found = row.sailor_s if cost == "sailor" else price.step_s
        peak = row.sailor_peak if cost == "sailor" else row.peak
        table.add_row(
            point.name + (" (apart)" if row.apart else ""),
            f"{point.step_s:.4g}",
            "-" if found is None else f"{found:.4g}",
            "-" if found is None else f"{error((found, point.step_s)):+.1%}",
            f"{price.pipeline_s:.4g}",
            f"{price.reduction_s:.4g}",
            "-" if point.reduction_s is None else f"{point.reduction_s:.4g}",
            "-" if not point.peak_bytes else f"{error((peak, point.peak_bytes)):+.1%}",
        )
    console.print(table)


def show_trials(console: Console, data: TrialSet) -> None:
    """One of AMP's clusters."""
    table = _table(f"{data.name}: seconds a step", "form", (*SCORES, "first choice s"))
    for form in AMP_FORMS:
        choice = data.first_choice(form)
        ran = "-" if choice is None else "failed" if choice.measured_s is None else f"{choice.measured_s:g}"
        name = f"{form[0]}, {form[1]}" + (" *" if form == MAIN else "")
        table.add_row(name, *_cells(data.score(form)), ran)
    table.add_row("AMP's own predictions", *_cells(data.amp()), "")
    console.print(table)
    for line in PUBLISHED.get(data.name, ()):
        console.print(f"  published: {line}", highlight=False)
    failed = [row for row in data.rows if row.trial.measured_s is None]
    for row in failed:
        console.print(f"  failed: {row.trial.name}: {row.refused or 'not foreseen'}", highlight=False)
    console.print()


def show_bars(console: Console, found: Sequence[Bar]) -> None:
    """Every bar and whether it is held."""
    table = Table(title="bars, for the form marked *", title_justify="left")
    for column in ("points", "bar", "found", ""):
        table.add_column(column)
    for bar in found:
        verdict = "no data" if bar.passed is None else "pass" if bar.passed else "FAIL"
        table.add_row(bar.subject, bar.text, bar.found, verdict)
    console.print(table)


def as_json(sets: Sequence[PointSet], trials: Sequence[TrialSet], found: Sequence[Bar]) -> dict[str, Any]:
    """The whole of it, a row per point and form."""
    return {
        "sets": {data.name: _set_json(data) for data in sets}
        | {one.name: _trials_json(one) for one in trials},
        "bars": [
            {"points": bar.subject, "bar": bar.text, "found": bar.found, "passed": bar.passed}
            for bar in found
        ],
    }


def _score_json(found: Score) -> dict[str, float | int | None]:
    values = {"mape": found.mape, "worst": found.worst, "bias": found.bias, "rank_correlation": found.rank}
    return {"points": found.points} | {name: one if one == one else None for name, one in values.items()}


def _set_json(data: PointSet) -> dict[str, Any]:
    return {
        "documented_form": DOCUMENTED.name,
        "forms": {form.name: _score_json(data.time(form)) for form in FORMS},
        "closed_form_against_simulation": {form.name: _score_json(data.closed_form(form)) for form in FORMS},
        "sailor": _score_json(data.sailor()),
        "memory": _score_json(data.memory()),
        "memory_sailor": _score_json(data.memory(sailor=True)),
        "published": list(PUBLISHED.get(data.name, ())),
        "points": [
            {
                "name": row.point.name,
                "measured_s": row.point.step_s,
                "predicted_s": {form.name: row.prices[form].step_s for form in FORMS},
                "sailor_s": row.sailor_s,
                "reduction_s": row.documented.reduction_s,
                "measured_reduction_s": row.point.reduction_s,
                "measured_peak_bytes": row.point.peak_bytes,
                "predicted_peak_bytes": row.peak,
                "sailor_peak_bytes": row.sailor_peak,
                "apart": row.apart,
                "memory_apart": row.memory_apart,
                "notes": list(row.point.notes),
            }
            for row in data.rows
        ],
    }


def _trials_json(data: TrialSet) -> dict[str, Any]:
    return {
        "documented_form": f"{MAIN[0]}, {MAIN[1]}",
        "forms": {f"{form[0]}, {form[1]}": _score_json(data.score(form)) for form in AMP_FORMS},
        "amp": _score_json(data.amp()),
        "published": list(PUBLISHED.get(data.name, ())),
        "points": [
            {
                "name": row.trial.name,
                "measured_s": row.trial.measured_s,
                "predicted_s": {f"{form[0]}, {form[1]}": row.prices[form] for form in AMP_FORMS},
                "amp_s": row.trial.predicted_s,
                "refused": row.refused,
            }
            for row in data.rows
        ],
    }
