"""AMP's trials priced: scores over those that ran, and which of those that failed are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hspmd_compiler.cost_models.published.layer_profiles import backward_from_forward
from hspmd_compiler.cost_models.semantics import SendSemantics
from hspmd_compiler.errors import EstimateError
from truth.amp_cluster import read_cluster
from truth.amp_memory import refusal
from truth.amp_price import amp_step_s, twice_forward
from truth.amp_trials import Trial
from truth.forms import DOCUMENTED, SEMANTICS
from truth.scores import Score, score

BACKWARDS = {"backward twice forward": twice_forward, "backward launches once": backward_from_forward}
TWICE = "backward twice forward"

AmpForm = tuple[SendSemantics, str]
MAIN: AmpForm = (DOCUMENTED.semantics, TWICE)
AMP_FORMS: tuple[AmpForm, ...] = tuple((one, rule) for rule in BACKWARDS for one in SEMANTICS)


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial with its prices by form. refused: why it would not be run; empty: it would."""

    trial: Trial
    prices: Mapping[AmpForm, float]
    refused: str


@dataclass(frozen=True, slots=True)
class TrialSet:
    """The rows of one of AMP's clusters."""

    name: str
    rows: tuple[TrialRow, ...]

    def score(self, form: AmpForm = MAIN) -> Score:
        """Over trials that ran."""
        return score(
            [
                (row.prices[form], row.trial.measured_s)
                for row in self.rows
                if row.trial.measured_s is not None
            ]
        )

    def amp(self) -> Score:
        """AMP's own predictions over the same."""
        return score(
            [
                (row.trial.predicted_s, row.trial.measured_s)
                for row in self.rows
                if row.trial.measured_s is not None
            ]
        )

    def first_choice(self, form: AmpForm = MAIN) -> Trial | None:
        """The trial that would be run: the fastest by price of those that are not refused."""
        allowed = [row for row in self.rows if not row.refused]
        return min(allowed, key=lambda row: row.prices[form]).trial if allowed else None

    def best_s(self) -> float:
        """Of all that ran."""
        return min(
            (row.trial.measured_s for row in self.rows if row.trial.measured_s is not None),
            default=float("nan"),
        )

    def refused(self, failed: bool) -> list[TrialRow]:
        """Refused ones among those that failed, or among those that ran."""
        return [row for row in self.rows if row.refused and (row.trial.measured_s is None) == failed]


def price_trials(planners: Path, trials: Mapping[str, Sequence[Trial]]) -> tuple[list[TrialSet], list[str]]:
    """A set a cluster, and a line for each cluster that is not described."""
    found, failed = [], []
    for name, rows in trials.items():
        try:
            cluster = read_cluster(planners, name)
        except EstimateError as error:
            failed.append(f"{name}: {error.what}")
            continue
        found.append(
            TrialSet(
                f"AMP, {name}",
                tuple(
                    TrialRow(
                        trial,
                        {
                            (semantics, rule): amp_step_s(cluster, trial, semantics, BACKWARDS[rule])
                            for semantics, rule in AMP_FORMS
                        },
                        refusal(cluster, trial),
                    )
                    for trial in rows
                ),
            )
        )
    return found, failed
