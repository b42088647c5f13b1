"""Writes HSPMD's annotation JSON: which device groups hold each module, split and copied how often.

Every `dup` and every split of inputs counts all pipelines, as the generators write it: the factor
between pipelines is multiplied into each pipeline's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from ..strategy import StageSpec
from .expanded import AnnotationStyle, Expanded

Json = dict[str, object]


class Family(StrEnum):
    """Which model family the modules' names are of."""

    LLAMA = "llama"
    GPT = "gpt"

    @property
    def norm(self) -> str:
        """The name of a norm in this family."""
        return "rmsnorm" if self is Family.LLAMA else "layernorm"


def annotation_json(expanded: Expanded, family: Family = Family.LLAMA, zero: bool = False) -> Json:
    """The annotation JSON of a strategy, its keys in the generators' order.

    zero: asked for; it is written as false where no second pipeline holds a copy.
    """
    strategy = expanded.strategy
    count = len(strategy.pipelines)
    ranges = expanded.style is AnnotationStyle.LAYER_RANGES
    groups = [_Groups.of(expanded, layer) for layer in range(strategy.num_layers)]
    number = expanded.num_gpus or max(strategy.devices) + 1
    form: Json = {"zero": (zero or expanded.zero) and count > 1, "devices": list(range(number))}
    if not ranges:
        recompute = expanded.recompute
        form["recompute_granularity"] = list(recompute.granularity) if recompute else [None] * count
        blocks = [list(named) for named in recompute.blocks] if recompute else [[] for _ in range(count)]
        form["recompute_layer_idxs_list"] = blocks
    form["input"] = groups[0].placeholder()
    form[family.value] = _model(expanded, groups, family)
    form["lm_head"] = groups[-1].variable("1")
    form["label"] = groups[-1].placeholder()
    return form


@dataclass(frozen=True, slots=True)
class _Groups:
    """The device groups of one block: one per pipeline, or all of them as one.

    degrees: tensor parallelism per group. copies: how many pipelines there are.
    """

    devices: tuple[tuple[int, ...], ...]
    degrees: tuple[int, ...]
    copies: int

    @classmethod
    def of(cls, expanded: Expanded, layer: int) -> _Groups:
        stages = _stages(expanded, layer)
        if expanded.style is AnnotationStyle.UNION:
            groups = tuple(stage.devices for stage in stages)
            return cls(groups, tuple(stage.tp for stage in stages), len(stages))
        together = tuple(device for stage in stages for device in stage.devices)
        return cls((together,), (stages[0].tp,), len(stages))

    def variable(self, dim: str) -> Json:
        """A parameter, split over its group's degree on this key."""
        return self._entry({dim: list(self.degrees)}, [self.copies] * len(self.devices), "variable")

    def whole(self) -> Json:
        """A parameter that every device of the group holds whole."""
        return self._entry({}, [self.copies * degree for degree in self.degrees], "variable")

    def placeholder(self) -> Json:
        """Data, split over pipelines and copied inside a group."""
        return self._entry({"0": [self.copies] * len(self.devices)}, list(self.degrees), "placeholder")

    def _entry(self, split: Json, dup: list[int], kind: str) -> Json:
        devices = [list(group) for group in self.devices]
        return {"split": split, "dup": dup, "device_group_union": devices, "type": kind}


def _stages(expanded: Expanded, layer: int) -> list[StageSpec]:
    return [pipeline.stages[pipeline.stage_of(layer)] for pipeline in expanded.strategy.pipelines]


def _model(expanded: Expanded, groups: list[_Groups], family: Family) -> Json:
    """Embedding, blocks, final norm."""
    if expanded.style is not AnnotationStyle.LAYER_RANGES:
        blocks = {
            f"blocks{layer}": _block(expanded, groups[layer], family, layer) for layer in range(len(groups))
        }
        final = groups[-1].variable("0")
        return {"wte": groups[0].variable("0"), "blocks": blocks, f"{family.norm}_final": final}
    merged: Json = {}
    for low, high in _runs(expanded):
        modules = _modules(groups[low], Family.GPT, groups[low].whole())
        merged[f"blocks{low}-{high}"] = {"range": [low, high], **modules}
    embeddings: Json = {"wte": groups[0].variable("0"), "wpe": groups[0].whole()}
    return {**embeddings, "blocks": merged, f"{Family.GPT.norm}_final": groups[-1].whole()}


def _runs(expanded: Expanded) -> Iterator[tuple[int, int]]:
    """First and last block of every stage; these strategies' pipelines are cut alike."""
    for stage in expanded.strategy.pipelines[0].stages:
        yield stage.layers[0], stage.layers[1] - 1


def _block(expanded: Expanded, groups: _Groups, family: Family, layer: int) -> Json:
    """One block: what is recomputed per pipeline, and its modules."""
    recompute = expanded.recompute
    pipelines = range(groups.copies)
    firsts = [stage.layers[0] for stage in _stages(expanded, layer)]
    flags = [
        recompute is not None and recompute.is_recomputed(each, layer, firsts[each]) for each in pipelines
    ]
    outputs = [recompute is not None and recompute.is_output_recomputed(each, layer) for each in pipelines]
    modules = _modules(groups, family, groups.variable("0"))
    if family is Family.LLAMA:
        mlp = modules["mlp"]
        assert isinstance(mlp, dict)
        mlp["activation_func"] = {}
    return {
        "range": [layer],
        "recompute": flags,
        "output_recompute": outputs,
        "cpu_offload": [False] * len(groups.devices),
        **modules,
    }


def _modules(groups: _Groups, family: Family, norm: Json) -> Json:
    """Norms, attention and MLP. Column-parallel weights are split on key 1, row-parallel ones on 0."""
    return {
        f"{family.norm}1": norm,
        "attn": {"qkv": groups.variable("1"), "dense": groups.variable("0")},
        f"{family.norm}2": norm,
        "mlp": {"dense_h_to_4h": groups.variable("1"), "dense_4h_to_h": groups.variable("0")},
    }
