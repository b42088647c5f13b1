"""A plan as tables: the step, parameters, exchanges, ranks, memory, what else was priced, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..annotations.of_layout import layout_states
from ..base.by_key import by_key
from ..base.name_groups import pattern_of
from ..base.number_ranges import number_ranges
from ..passes.annotate import Annotate
from ..passes.compile_state import Traced
from ..strategy.strategy import GradientForm, PipelineSpec
from ..synthesizer.planner.candidates import PricedCandidate
from ..synthesizer.planner.explain import Explanation
from ..synthesizer.planner.plan import Plan
from ..synthesizer.value_types import FoundExchange
from .estimate_page import estimate_sections
from .sections import Cell, Listing, Section, Table
from .units import bytes_text, seconds_text, sizes_text

NOT_SEARCHED = "not searched"
HELD_AS = (
    "held as: S cut along a dim, /n in whole units of n, @k by the k-th vector of shares after that by speed",
    "D whole, its gradient a sum still to come; E whole, its gradient too; P a sum still to come",
    "the table of parameters says D of both kinds of whole ones",
)
OF_ESTIMATE = ("ranks", "memory", "memory parts", "links", "path")


def plan_sections(
    plan: Plan, explained: Sequence[Explanation] = (), for_scripts: bool = False
) -> list[Section]:
    """Everything that is told of a plan. for_scripts: seconds as numbers, and a line for each rank."""
    priced = {section.key: section for section in estimate_sections(plan.estimate, for_scripts)}
    sections: list[Section] = [
        Table("plan", f"plan: {plan.chosen.name}", ("fact", "value"), tuple(_facts(plan, for_scripts))),
        Table("groups", "who takes which samples", GROUP_COLUMNS, tuple(_groups(plan))),
        _parameters(plan, for_scripts),
        *_exchanges(plan, for_scripts),
        *(priced[key] for key in OF_ESTIMATE if key in priced),
        _runner_ups(plan, for_scripts),
        *_refused(plan),
        *(_explanation(one, for_scripts) for one in explained),
    ]
    notes = dict.fromkeys((*plan.notes, *_left_out(plan), *plan.estimate.notes))
    if explained:
        sections.append(Listing("types", "the best programs above are " + _whose(plan), HELD_AS))
    return [*sections, *([Listing("notes", "what to know of it", tuple(notes))] if notes else [])]


def _whose(plan: Plan) -> str:
    """Of which candidate the explanations are, and beside what."""
    searched = plan.searched
    assert searched is not None, "without a search nothing is explained"
    if searched is plan.chosen:
        return "of the plan's grouping"
    return f"of {searched.name!r}, the quickest that was searched; the plan, {plan.chosen.name!r}, was not"


def _facts(plan: Plan, for_scripts: bool) -> Iterator[tuple[Cell, ...]]:
    step_s = plan.estimate.step_s
    yield "step, predicted", _seconds(step_s, for_scripts)
    yield (
        "step, as planned",
        NOT_SEARCHED if plan.planned_s is None else _seconds(plan.planned_s, for_scripts),
    )
    yield "lower bound", _seconds(plan.bound_s, for_scripts)
    yield "gap to the bound", round(plan.gap, 6) if for_scripts else f"{plan.gap:.1%} of the step"
    if plan.found is not None:
        yield "best program of its grouping", _proof(plan, for_scripts)
    yield "samples per second", round(plan.estimate.samples_per_s, 3)
    yield "bounded by", plan.estimate.bound
    yield "devices used", f"{plan.strategy.world_size} of {len(plan.devices.devices)}"
    yield "global batch", plan.strategy.global_batch
    yield "ZeRO", plan.strategy.zero


def _proof(plan: Plan, for_scripts: bool) -> Cell:
    """Whether the search proved its optimum."""
    assert plan.found is not None
    price, bound = plan.found.price_s, plan.found.bound_s
    if price <= bound * (1 + 1e-9):
        return "proven"
    return f"at least {seconds_text(bound)} as planned" if not for_scripts else round(bound, 9)


GROUP_COLUMNS = ("pipelines", "devices", "each on", "samples of each", "micro-batches", "shares", "recompute")


def _groups(plan: Plan) -> Iterator[tuple[Cell, ...]]:
    """Pipelines of one stage; those that are alike in one line."""
    alike = by_key(
        (_group_text(plan, pipeline), number) for number, pipeline in enumerate(plan.strategy.pipelines)
    )
    for text, numbers in alike.items():
        devices = [one for number in numbers for one in plan.strategy.pipelines[number].devices]
        yield (number_ranges(numbers), number_ranges(sorted(devices)), *text)


def _group_text(plan: Plan, pipeline: PipelineSpec) -> tuple[Cell, ...]:
    stage = pipeline.stages[0]
    places = by_key((f"{plan.devices.node_of(one)} ({_kind(plan, one)})", one) for one in stage.devices)
    return (
        ", ".join(f"{len(held)} x {place}" for place, held in places.items()),
        pipeline.batch_size,
        sizes_text(pipeline.micro_batches),
        "even" if stage.shares is None else " ".join(map(str, stage.shares)),
        " ".join(f"{one.kind.value} {one.layers[0]}:{one.layers[1]}" for one in pipeline.recompute),
    )


def _kind(plan: Plan, device: int) -> str:
    spec = plan.devices.by_id[device].kind
    name = (spec.kind or "device").partition(" ")[2] or spec.kind or "device"
    return name + (f" at pace {spec.pace:g}" if spec.pace != 1 else "")


def _left_out(plan: Plan) -> Iterator[str]:
    """Why devices stand idle: what the quickest strategy that uses all of them costs."""
    every = len(plan.devices.devices)
    if plan.strategy.world_size == every:
        return
    idle = f"{every - plan.strategy.world_size} of {every} devices are left out"
    full = [one for one in plan.runner_ups if one.fits and one.strategy.world_size == every]
    if full:
        yield f"{idle}: with all, the quickest step is {seconds_text(full[0].step_s)}, {full[0].name!r}"
    else:
        yield f"{idle}: no strategy that was priced uses all of them and fits"


def _parameters(plan: Plan, for_scripts: bool) -> Table:
    """Each parameter as the ranks of a stage hold it, those of all layers in one line."""
    prices = {one.name: one.price_s for one in plan.found.params} if plan.found else {}
    texts = dict(_layout_texts(plan))
    groups = by_key(((pattern_of(name), *text), name) for name, text in texts.items())
    rows = [
        (
            pattern if len(names) > 1 else names[0],
            len(names),
            shape,
            layout,
            _seconds(sum(prices.get(name, 0.0) for name in names), for_scripts) if prices else "",
        )
        for (pattern, shape, layout), names in groups.items()
    ]
    columns = ("parameter", "count", "shape", "on the ranks of a pipeline", "gradient, as planned")
    return Table(
        "parameters",
        "parameters: S cut along a dim, D whole on each rank, R whole on one",
        columns,
        tuple(rows),
    )


def _layout_texts(plan: Plan) -> Iterator[tuple[str, tuple[str, str]]]:
    strategy = plan.strategy
    layouts = Annotate(strategy).run(Traced(plan.graph)).layouts
    for name, info in plan.graph.params.items():
        if not info.is_buffer:
            texts = dict.fromkeys(
                str(layout_states(layouts.layout(number, name, 0), pipeline.stages[0].tp))
                for number, pipeline in enumerate(strategy.pipelines)
            )
            override = strategy.override_of(info.aliases)
            factors = override is not None and override.gradient is GradientForm.FACTORS
            held = " | ".join(texts) + (", factors" if factors else "")
            yield name, ("x".join(map(str, info.shape)), held)


def _exchanges(plan: Plan, for_scripts: bool) -> Iterator[Table]:
    """What moves between operators, in the order of the forward pass, once for all layers."""
    if plan.found is None:
        return
    groups = by_key((_exchange_key(one), one) for one in plan.found.exchanges)
    rows: list[tuple[Cell, ...]] = [
        (
            pattern_of(same[0].anchor) if len(same) > 1 else same[0].anchor,
            len(same),
            before,
            after,
            forward or "-",
            backward or "-",
            _seconds(sum(one.price_s for one in same), for_scripts),
        )
        for (_, before, after, forward, backward), same in groups.items()
    ]
    columns = ("behind", "count", "from", "to", "forward", "backward", "seconds, as planned")
    types = "S cut, D whole (its gradient a sum to come), E whole, P a sum to come"
    title = f"values that change hands: {types}" if rows else "no value changes hands"
    yield Table("exchanges", title, columns, tuple(rows))


def _exchange_key(one: FoundExchange) -> tuple[str, str, str, str, str]:
    uneven = one.shares is not None and len({*one.shares}) > 1
    shares = f"({','.join(map(str, one.shares or ()))})" if uneven else ""
    after = f"{one.after.text()}{shares}"
    return pattern_of(one.anchor), one.before.text(), after, one.forward, one.backward


def _runner_ups(plan: Plan, for_scripts: bool) -> Table:
    rows = [_runner_up(one, plan.estimate.step_s, for_scripts) for one in (plan.chosen, *plan.runner_ups)]
    columns = ("strategy", "step", "beside the plan", "as planned", "memory", "collective bytes")
    return Table("candidates", "what was compiled and priced", columns, tuple(rows))


def _refused(plan: Plan) -> Iterator[Listing]:
    """Why what can't be compiled can't."""
    lines = tuple(f"{one.name}: {one.refused}" for one in plan.runner_ups if one.estimate is None)
    if lines:
        yield Listing("refused", "what was refused", lines)


def _runner_up(one: PricedCandidate, least_s: float, for_scripts: bool) -> tuple[Cell, ...]:
    if one.estimate is None:
        return one.name, "refused", "", "", "", ""
    found = one.candidate.found
    planned = "" if found is None else _seconds(found.price_s, for_scripts)
    most = max(one.estimate.ranks, key=lambda rank: rank.memory.peak.total - rank.usable_bytes)
    fits = "fits" if one.fits else f"lacks {bytes_text(one.excess_bytes)} on rank {most.rank}"
    beside = one.step_s / least_s - 1 if least_s else 0.0
    return (
        one.name,
        _seconds(one.step_s, for_scripts),
        round(beside, 6) if for_scripts else f"{beside:+.1%}",
        planned,
        fits,
        sum(one.estimate.traffic.values()),
    )


def _explanation(one: Explanation, for_scripts: bool) -> Table:
    least = min((way.price_s for way in one.ways), default=0.0)
    rows: list[tuple[Cell, ...]] = [
        (
            way.type.text(),
            _seconds(way.price_s, for_scripts),
            _seconds(way.price_s - least, for_scripts),
            "chosen" if way.is_chosen else "",
        )
        for way in one.ways
    ]
    title = f"{one.name}: the best program with each way of holding it"
    if one.made_whole:
        title += f"; {one.made_whole} has no rule, so every rank of a group computes it whole"
    return Table(
        f"explain {one.name}", title, ("held as", "step, as planned", "above the best", "taken"), tuple(rows)
    )


def _seconds(seconds: float, for_scripts: bool) -> Cell:
    return round(seconds, 9) if for_scripts else seconds_text(seconds)
