"""A step's choice as JSON: one text for one plan, read strictly; its digest is what ranks compare."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from ...base.codec import encode
from ...base.forms import VERSION, Version, problems_of
from ...base.json_yaml import read_file, read_json, write_text
from ...base.typed import AtLeast, Misfits, read
from .plan_check import PLAN
from .sizes import MicroSizes
from .step_plan import StepPlan

SHOWN_DIGEST = 12
Length = Annotated[int, AtLeast(0)]
Lengths = tuple[Length, ...]


@dataclass(frozen=True, slots=True)
class MicroForm:
    """The keys of a micro-batch: those of `MicroSizes`."""

    samples: Length = 1
    tokens: Length = 0
    cuts: tuple[Lengths, ...] = ()
    ring: Lengths = ()
    first: Length = 0
    documents: Lengths = ()


@dataclass(frozen=True, slots=True)
class PlanForm:
    """The keys of a plan's file."""

    version: Version = VERSION
    pipelines: tuple[tuple[MicroForm, ...], ...] = field(kw_only=True)


def plan_text(plan: StepPlan) -> str:
    """The plan as one line of JSON; what is at its default is left out."""
    return json.dumps({"version": VERSION, "pipelines": encode(plan.pipelines)}, separators=(",", ":"))


def plan_from(content: object, at: str = "") -> StepPlan:
    """The plan that plain values stand for; one error tells all that don't fit. at: where they come from."""
    try:
        form = read(PlanForm, content)
    except Misfits as error:
        PLAN.refuse(problems_of(error, "plan"), at)
        raise
    return StepPlan(tuple(tuple(_micro(each) for each in micros) for micros in form.pipelines))


def plan_from_text(text: str, at: str = "") -> StepPlan:
    """As `plan_from`, of JSON."""
    return plan_from(read_json(text, PLAN, at), at)


def write_plan(plan: StepPlan, path: Path) -> None:
    """Write a file that reads back as an equal plan."""
    write_text(path, plan_text(plan) + "\n", PLAN.error)


def read_plan(path: Path) -> StepPlan:
    """The plan of a file."""
    return plan_from(read_file(path, PLAN, "the plan"), str(path))


def plan_digest(plan: StepPlan) -> str:
    """Equal for equal plans."""
    return sha256(plan_text(plan).encode()).hexdigest()[:SHOWN_DIGEST]


def _micro(form: MicroForm) -> MicroSizes:
    return MicroSizes(form.samples, form.tokens, form.cuts, form.ring, form.first, form.documents)
