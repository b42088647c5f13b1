"""Where parameters and their gradients lie, over all pipelines; those that lie alike share their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ..errors import DeduceError
from ..ir.annotated import PipelineGraph
from ..ir.element_types import NARROW
from ..ir.graph import LogicalGraph
from ..ir.type_text import dtype_name
from ..layout.layout import Layout, whole
from .grad_buckets import GradLayout, Holder, make_holders, make_term
from .lower.strategy_ranks import StrategyRanks
from .texts.cells import ranks_text
from .zero.zero import has_several_holders, parts_of

PlaceOf = tuple[Layout, tuple[int, ...]]
"""Layout and ranks of a stage that holds a parameter, or an addend of its gradient."""


@dataclass(slots=True)
class ParamPlaces:
    """places: of every stage that holds a parameter."""

    graph: LogicalGraph
    pipelines: Sequence[PipelineGraph]
    ranks: StrategyRanks
    places: dict[str, tuple[PlaceOf, ...]] = field(init=False)
    gradients: Mapping[str, GradLayout] = field(init=False)
    _holders: dict[tuple[PlaceOf, ...], tuple[Holder, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places = self._find_places()
        self.gradients = self._find_gradients()

    def _find_places(self) -> dict[str, tuple[PlaceOf, ...]]:
        """Parameters that a pipeline does not use are whole in its first stage."""
        found: dict[str, list[PlaceOf]] = {name: [] for name in self.graph.params}
        for p, graph in enumerate(self.pipelines):
            used = set()
            for (name, stage), value in sorted(graph.params.items(), key=lambda item: item[0]):
                _add(found[name], name, (value.layout, self.ranks.of_stage(p, stage)))
                used.add(name)
            for name in self.graph.params.keys() - used:
                found[name].append((whole(self.graph.params[name].shape), self.ranks.of_stage(p, 0)))
        return {name: tuple(places) for name, places in found.items()}

    def _find_gradients(self) -> dict[str, GradLayout]:
        """What each parameter's reduction depends on; equal ones are one object."""
        terms: dict[str, list[PlaceOf]] = {}
        for p, graph in enumerate(self.pipelines):
            for term in graph.grads:
                place = (term.value.layout, self.ranks.of_stage(p, term.stage))
                _add(terms.setdefault(term.param, []), f"the gradient of {term.param}", place)
        known: dict[object, GradLayout] = {}
        for name, places in terms.items():
            key = (tuple(places), self.places[name])
            if key not in known:
                made = tuple(make_term(layout, ranks) for layout, ranks in places)
                known[key] = GradLayout(self.graph.params[name].shape, made, self.holders(name))
        return {
            name: known[tuple(terms[name]), self.places[name]] for name in self.graph.params if name in terms
        }

    def holders(self, name: str) -> tuple[Holder, ...]:
        """Every rank's piece of a parameter; parameters that are held alike have one tuple."""
        places = self.places[name]
        if places not in self._holders:
            self._holders[places] = tuple(
                holder for layout, ranks in places for holder in make_holders(layout, ranks)
            )
        return self._holders[places]

    def types(self, name: str) -> tuple[str, str]:
        """The types that a parameter is read and its gradients are summed in."""
        read = self.graph.params[name].dtype
        return dtype_name(read), dtype_name(torch.float32 if read in NARROW else read)

    def shared(self) -> frozenset[str]:
        """Trained parameters of which some element has several holders: what ZeRO is about."""
        known: dict[int, bool] = {}
        for layout in self.gradients.values():
            if id(layout) not in known:
                known[id(layout)] = has_several_holders(parts_of(layout))
        return frozenset(name for name, layout in self.gradients.items() if known[id(layout)])


def _add(places: list[PlaceOf], what: str, place: PlaceOf) -> None:
    """Ranks that hold something for several stages have one piece of it, to which each stage adds."""
    for layout, ranks in places:
        if ranks == place[1]:
            if layout != place[0]:
                raise _unlike(what, ranks)
            return
    places.append(place)


def _unlike(what: str, ranks: tuple[int, ...]) -> DeduceError:
    return DeduceError(
        f"{what} lies in two ways on the same ranks",
        details=[("ranks", ranks_text(ranks))],
        rule="ranks that run several stages hold a parameter that these share once",
        fix="give the stages that share it the same shares and overrides, or devices of their own",
    )
