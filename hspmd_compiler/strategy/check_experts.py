"""The rules of a strategy's `expert_form`: how tokens come to experts."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ..base.bad_values import Problem
from .strategy import ExpertForm, Strategy


def expert_form_problems(strategy: Strategy, unread: Collection[str]) -> Iterator[Problem]:
    """Some stage shares out experts, and what is counted in a step has one size in a program."""
    form = strategy.expert_form
    if form is None:
        return
    stages = (stage for pipeline in strategy.pipelines for stage in pipeline.stages)
    unsure = any(path.startswith("pipelines") for path in unread)
    if not unsure and all(stage.experts is None for stage in stages):
        yield Problem("expert_form", f"{form.value}: no stage shares out experts; give one `experts`")
    if form is not ExpertForm.ALL_TO_ALL:
        return
    for name, given in (("sizes", strategy.sizes), ("context", strategy.context)):
        if given:
            rule = "rows are counted in pieces of one size; set expert_form to gather, or leave it out"
            yield Problem("expert_form", f"all_to_all with {name}: {rule}")
