"""Strategy to layouts: how each stage holds each parameter, how the batch and the tokens are cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

from ..annotations.annotation import Annotation
from ..annotations.of_layout import layout_states
from ..annotations.split import consecutive, even_lengths
from ..annotations.text import parse_annotation
from ..errors import AnnotationError, InternalError, StrategyError
from ..ir.graph import LogicalGraph, ParamInfo
from ..ir.printer import aligned
from ..layout.intervals import Intervals, Sets, covers, union
from ..layout.layout import Axis, Factor, Layout, make_layout, whole
from ..layout.several_cuts import with_cuts
from ..strategy.check import check
from ..strategy.strategy import ExpertForm, Override, StageSpec, Strategy
from .compile_state import Annotated, Traced
from .deduction.factors import factored
from .deduction.placement import GraphFacts, StartLayouts, first_coordinate
from .dims.expert_matrices import check_experts, expert_matrices, router_parameters
from .dims.infer_dims import infer_dims
from .dims.split_units import Member, SplitGroup, SplitKind, assign, split_groups
from .dims.whole_parameters import WholeParameter, warn_of_kept, whole_lines, whole_parameters
from .grad_buckets import is_covered
from .layout_wishes import bind_layouts, wish_lines
from .pass_chain import Pass

TokenCuts = Mapping[int, tuple[int, ...]]
"""Tokens of each rank of a stage, by the number of ranks."""
NO_CUTS: TokenCuts = {}


@dataclass(frozen=True, slots=True)
class ParameterLayouts:
    """Layouts of parameters by stage, from split units and hand-written overrides.

    unsplit: parameters that have no units. experts: those that hold a matrix for each expert. routers: those
    that choose experts, where rows go to these.
    """

    graph: LogicalGraph
    strategy: Strategy
    by_param: dict[str, tuple[SplitGroup, tuple[Member, ...]]]
    unsplit: tuple[WholeParameter, ...] = ()
    experts: frozenset[str] = frozenset()
    routers: frozenset[str] = frozenset()

    def layout(self, pipeline: int, name: str, stage: int) -> Layout:
        """How the ranks of a stage hold a parameter."""
        info = self.graph.params[name]
        spec = self.strategy.pipelines[pipeline].stages[stage]
        override = self._override(info)
        if spec.tp == 1 or (override is not None and override.duplicate):
            return whole(info.shape)
        if override is not None and override.annotation is not None:
            return _annotated(info, spec, override.annotation)
        if override is None and spec.experts is not None and info.name in self.experts:
            return self._split(info, 0, spec.tp, spec.tp, spec.experts)
        if override is None and spec.experts is not None and info.name in self.routers:
            return whole(info.shape)
        return self._by_units(info, spec, override)

    def used(self, pipeline: int, name: str, stage: int) -> Layout:
        """How operators take a parameter that is stored in several cuts: as if it had no annotation."""
        info = self.graph.params[name]
        return self._by_units(info, self.strategy.pipelines[pipeline].stages[stage], None)

    def _by_units(self, info: ParamInfo, spec: StageSpec, override: Override | None) -> Layout:
        """By the units that the model's operators allow, or as the override splits and shares."""
        degree = override.degree(spec) if override is not None else spec.tp
        shares = _shares(spec, override, degree)
        if override is not None and override.split is not None:
            return self._split(info, override.split, degree, spec.tp, shares)
        if info.name not in self.by_param:
            return whole(info.shape)
        group, members = self.by_param[info.name]
        return _grouped(info, group, members, degree, spec.tp, shares)

    def _override(self, info: ParamInfo) -> Override | None:
        """The last one that names the parameter, by whichever of its names."""
        return self.strategy.override_of(info.aliases)

    def _split(self, info: ParamInfo, dim: int, degree: int, ranks: int, shares: tuple[int, ...]) -> Layout:
        if dim >= len(info.shape):
            raise StrategyError(
                f"override splits dim {dim} of {info.name}, which has {len(info.shape)}",
                details=[("shape", str(list(info.shape)))],
                rule="a split names a dim of the parameter",
                fix=f"choose a dim below {len(info.shape)}",
            )
        group, members = self.by_param.get(info.name, (None, ()))
        along = tuple(member for member in members if member.dim == dim)
        if group is not None and along:
            return _grouped(info, group, along, degree, ranks, shares)
        plain = SplitGroup(info.name, info.shape[dim], None, SplitKind.OTHER, ())
        held = [((low, high),) if high > low else () for low, high in assign(plain, shares)]
        return _cut(info, dim, _repeat(held, ranks))


def _shares(spec: StageSpec, override: Override | None, degree: int) -> tuple[int, ...]:
    if override is not None and override.shares is not None and len(override.shares) == degree:
        return override.shares
    if override is not None and override.shares is not None:
        raise StrategyError(
            f"override {override.match!r} has {len(override.shares)} shares for {degree} ranks",
            details=[("shares", str(list(override.shares))), ("devices", str(list(spec.devices)))],
            rule="one share per rank of each stage that the override applies to",
            fix="give that many shares, or narrow the glob to layers of one stage",
        )
    if spec.shares is not None and degree == spec.tp:
        return spec.shares
    return (1,) * degree


def _repeat(held: Sequence[Intervals], ranks: int) -> Sets:
    """Sets of `ranks` ranks from those of a divisor of it: neighbours hold copies."""
    copies = ranks // len(held)
    return tuple(held[rank // copies] for rank in range(ranks))


def _cut(info: ParamInfo, dim: int, sets: Sets) -> Layout:
    if not covers(info.shape[dim], sets):
        raise _uncovered(info, str([list(held) for held in sets]))
    cut = Factor(info.shape[dim], Axis.TENSOR, sets)
    return make_layout(tuple((cut,) if i == dim else (Factor(size),) for i, size in enumerate(info.shape)))


def _uncovered(info: ParamInfo, held: str) -> StrategyError:
    return StrategyError(
        f"the layout of {info.name} leaves elements without a holder",
        details=[("shape", str(list(info.shape))), ("held", held)],
        rule="every element of a parameter is held by some rank of its stage",
        fix="let the shares or the annotation cover the whole dim",
    )


def _grouped(
    info: ParamInfo,
    group: SplitGroup,
    members: tuple[Member, ...],
    degree: int,
    ranks: int,
    shares: tuple[int, ...],
) -> Layout:
    member = members[0]
    held = [
        union(rows for rows in member.rows(low, high) if rows[1] > rows[0])
        for low, high in assign(group, shares)
    ]
    return _cut(info, member.dim, _repeat(held, ranks))


def _annotated(info: ParamInfo, spec: StageSpec, text: str) -> Layout:
    """The layout of a hand-written annotation on the devices of one stage."""
    annotation = _read(info, text)
    if not set(spec.devices) <= set(annotation.devices):
        raise StrategyError(
            f"the annotation of {info.name} does not name the devices of its stage",
            details=[("annotation", text), ("devices", str(list(spec.devices)))],
            rule="a parameter's annotation places it on all devices of every stage that uses it",
            fix="name those devices in the annotation",
        )
    if isinstance(annotation.hetero, int) and set(annotation.devices) != set(spec.devices):
        raise StrategyError(
            f"the annotation of {info.name} divides dim {annotation.hetero} between stages",
            details=[("annotation", text), ("devices", str(list(spec.devices)))],
            rule="every stage that uses a parameter holds all of it",
            fix="write hetero=dup, and the split inside each subgroup",
        )
    return _layout_of(info, annotation, spec.devices)


def _read(info: ParamInfo, text: str) -> Annotation:
    """The annotation, checked on the parameter; an error says which parameter it is."""
    try:
        annotation = parse_annotation(text)
        annotation.check(info.shape, leaf=True)
    except AnnotationError as error:
        details = [("parameter", f"{info.name}, shape {list(info.shape)}"), *error.details]
        raise AnnotationError(error.what, details=details, rule=error.rule, fix=error.fix) from error
    return annotation


def _layout_of(info: ParamInfo, annotation: Annotation, devices: tuple[int, ...]) -> Layout:
    """The rows of each rank per dim, the dims that are whole everywhere left whole."""
    held = annotation.intervals(info.shape)
    regions = [held[device] for device in devices]
    if not is_covered(info.shape, regions):
        raise _uncovered(info, str([[list(rows) for rows in region] for region in regions]))
    cuts = {
        dim: Factor(size, Axis.TENSOR, tuple(region[dim] for region in regions))
        for dim, size in enumerate(info.shape)
        if any(region[dim] != ((0, size),) for region in regions)
    }
    return with_cuts(whole(info.shape), cuts, None)


def token_sets(spec: StageSpec, length: int, cuts: TokenCuts = NO_CUTS) -> Sets | None:
    """Token intervals per rank of a stage under sequence parallelism, the first ranks one token longer.

    cuts: instead, of the degrees that are among them.
    """
    if spec.tp == 1:
        return None
    given = cuts.get(spec.tp, ())
    pieces = consecutive(given if sum(given) == length else even_lengths(length, spec.tp))
    return tuple(((low, high),) if high > low else () for low, high in pieces)


def batch_sets(strategy: Strategy) -> Sets:
    """Rows of the global batch per (pipeline, micro-batch), pipelines one after another."""
    rows = [rows for pipeline in range(len(strategy.pipelines)) for rows in strategy.rows(pipeline)]
    return tuple((interval,) for interval in rows)


def _layers_to_run(graph: LogicalGraph, strategy: Strategy) -> int | None:
    """A model without layers counts as one: with two stages, one would have nothing to do."""
    is_cut = any(len(pipeline.stages) > 1 for pipeline in strategy.pipelines)
    return len(graph.layers) or (1 if is_cut else None)


def _is_duplicated(graph: LogicalGraph, strategy: Strategy, group: SplitGroup) -> bool:
    """Whether overrides keep all of a group whole, so that its units limit no stage."""
    overrides = [strategy.override_of(graph.params[member.param].aliases) for member in group.members]
    return all(override is not None and override.duplicate for override in overrides)


def annotate(
    graph: LogicalGraph,
    strategy: Strategy,
    facts: GraphFacts | None = None,
    cuts: TokenCuts = NO_CUTS,
) -> tuple[ParameterLayouts, list[StartLayouts]]:
    """What each pipeline's deduction starts from; StrategyError where the strategy can't fit the model."""
    if strategy.context:
        raise InternalError("pipelines that share sequences are laid out each for its own tokens")
    flow = infer_dims(graph, facts)
    groups = split_groups(graph, flow)
    heads = [
        group.units
        for group in groups
        if group.kind is SplitKind.HEADS and not _is_duplicated(graph, strategy, group)
    ]
    check(strategy, num_layers=_layers_to_run(graph, strategy), num_heads=min(heads, default=None))
    _check_matched(graph, strategy)
    by_param: dict[str, tuple[SplitGroup, tuple[Member, ...]]] = {}
    for group in groups:
        for member in group.members:
            found = by_param.get(member.param)
            by_param[member.param] = (group, (*(found[1] if found else ()), member))
    factors = factored(graph, strategy)
    whole_ones, experts = whole_parameters(graph, flow, groups), expert_matrices(graph)
    check_experts(graph, strategy, experts)
    exchanges = strategy.expert_form is ExpertForm.ALL_TO_ALL
    routers = router_parameters(graph) if exchanges else frozenset()
    layouts = ParameterLayouts(graph, strategy, by_param, whole_ones, experts, routers)
    warn_of_kept(graph, [item for item in layouts.unsplit if _is_alike_on_ranks(layouts, item.name)])
    batch = batch_sets(strategy)
    pipelines = range(len(strategy.pipelines))
    return layouts, [
        replace(_placement(layouts, strategy, index, batch, cuts), factors=factors) for index in pipelines
    ]


def _is_alike_on_ranks(layouts: ParameterLayouts, name: str) -> bool:
    """Whether a stage of several ranks has the parameter whole on each of them."""
    layer = layouts.graph.rows[layouts.graph.params[name].row].layer
    stages = [
        (pipeline, place)
        for pipeline, spec in enumerate(layouts.strategy.pipelines)
        for place, stage in enumerate(spec.stages)
        if stage.tp > 1 and (layer is None or stage.layers[0] <= layer < stage.layers[1])
    ]
    return any(layouts.layout(p, name, place).cut(ranks=True) is None for p, place in stages)


def _placement(
    layouts: ParameterLayouts, strategy: Strategy, pipeline: int, batch: Sets, cuts: TokenCuts
) -> StartLayouts:
    stages = strategy.pipelines[pipeline].stages
    cache: dict[tuple[str, int], Layout] = {}

    def layout(name: str, stage: int) -> Layout:
        if (name, stage) not in cache:
            cache[name, stage] = layouts.layout(pipeline, name, stage)
        return cache[name, stage]

    def tokens(stage: int, length: int) -> Sets | None:
        return token_sets(stages[stage], length, cuts)

    first = first_coordinate(strategy, pipeline)
    own = range(first, first + len(strategy.rows(pipeline)))
    used = partial(layouts.used, pipeline)
    by_token = strategy.sizes is not None and strategy.sizes.tokens is not None
    exchanges = strategy.expert_form is ExpertForm.ALL_TO_ALL
    return StartLayouts(
        batch,
        layout,
        tokens,
        strategy.sequence_parallel,
        used,
        own,
        by_token=by_token,
        exchanges_rows=exchanges,
    )


def _check_matched(graph: LogicalGraph, strategy: Strategy) -> None:
    """An override that matches nothing is a mistake."""
    unmatched = [item.match for item in strategy.overrides if not _matches_any(item, graph.params.values())]
    if unmatched:
        raise StrategyError(
            "overrides match no parameter of the model",
            details=[("match", pattern) for pattern in unmatched],
            rule="each override's glob names at least one parameter, or a module that has one",
            fix="see the names with `hspmd trace MODEL`",
        )


def _matches_any(override: Override, params: Iterable[ParamInfo]) -> bool:
    return any(override.matches(name) for info in params if not info.is_buffer for name in info.aliases)


def parameter_text(layouts: ParameterLayouts) -> str:
    """One line per parameter: where each pipeline's stages could hold it, and how."""
    lines = []
    for name, info in layouts.graph.params.items():
        if info.is_buffer:
            continue
        cells = [
            str(layout_states(layouts.layout(p, name, s), stage.tp))
            for p, pipeline in enumerate(layouts.strategy.pipelines)
            for s, stage in enumerate(pipeline.stages)
        ]
        shape = ",".join(map(str, info.shape))
        lines.append((name, f"[{shape}]", f"<{' | '.join(dict.fromkeys(cells))}>"))
    unsplit = (
        ["", "whole under tensor parallelism:", *whole_lines(layouts.unsplit)] if layouts.unsplit else []
    )
    return "\n".join([*aligned(lines), *unsplit]) + "\n"


@dataclass(frozen=True, slots=True)
class Annotate(Pass[Traced, Annotated]):
    """From here on a program is that of one strategy. cuts: of tokens, see `token_sets`."""

    strategy: Strategy
    cuts: TokenCuts = field(default_factory=dict)

    def run(self, state: Traced) -> Annotated:
        graph = bind_layouts(state.graph, self.strategy)
        facts = GraphFacts.of(graph)
        layouts, placements = annotate(graph, self.strategy, facts, self.cuts)
        return Annotated(graph, self.strategy, layouts, placements, facts)

    def text(self, before: Traced, after: Annotated) -> str:
        wishes = wish_lines(after.graph)
        asked = "".join(f"{line}\n" for line in ("", "layouts asked for:", *wishes)) if wishes else ""
        return parameter_text(after.layouts) + asked

    def problems(self, before: Traced, after: Annotated) -> Iterator[str]:
        """Every sample of a step is in one micro-batch, and every pipeline has its own."""
        ends = [bounds for held in batch_sets(self.strategy) for bounds in held]
        samples = sorted(ends)
        if any(low != high for (_, high), (low, _) in pairwise(samples)):
            yield f"micro-batches {samples} do not lie side by side"
        if sum(high - low for low, high in samples) != self.strategy.global_batch:
            yield f"micro-batches {samples} are not the {self.strategy.global_batch} samples of a step"
        if len(after.placements) != len(self.strategy.pipelines):
            yield f"{len(after.placements)} placements for {len(self.strategy.pipelines)} pipelines"
