"""One model on one list of devices, searched in HAP's space and priced as HAP prices; DP beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from resource import RUSAGE_CHILDREN, getrusage
from time import process_time
from typing import TypeVar

import models
import torch

from hspmd_compiler.errors import OptionError
from hspmd_compiler.synthesizer.hap.baselines import even_s, proportional_s
from hspmd_compiler.synthesizer.hap.calls import HapRecording, record
from hspmd_compiler.synthesizer.hap.costs import Bandwidths, HapMachine
from hspmd_compiler.synthesizer.hap.notes import notes
from hspmd_compiler.synthesizer.hap.operators import cut_of, is_cut
from hspmd_compiler.synthesizer.hap.plan import HapPlan, plan_hap
from hspmd_compiler.synthesizer.hap.search import VectorFor

T = TypeVar("T")
Sizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """segment_ends: globs over modules behind which HAP may change its ratios."""

    title: str
    build: Callable[..., models.Made]
    segment_ends: tuple[str, ...] = ("layers.*",)


POOLINGS = tuple(f"features.{index}" for index in (4, 9, 18, 27, 36))
TABLE_WIDTH = 140
"""Columns of a table where there is no terminal."""
BENCHMARKS: Mapping[str, Benchmark] = {
    "vgg19": Benchmark("VGG19", models.vgg19, POOLINGS),
    "vit": Benchmark("ViT", models.vit),
    "bert": Benchmark("BERT-Base", models.bert),
    "bert-moe": Benchmark("BERT-MoE", models.bert_moe),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """sizes: arguments of the model's factory beside layers and devices."""

    model: str
    speeds: tuple[float, ...]
    bandwidths: Bandwidths
    layers: int | None = None
    sizes: Sizes = ()
    segmented: bool = False
    extra_ps: bool = False

    @property
    def arguments(self) -> dict[str, int]:
        layers = {} if self.layers is None else {"layers": self.layers}
        return {"devices": len(self.speeds), **layers, **dict(self.sizes)}


@dataclass(frozen=True, slots=True)
class Searched:
    """Prices in seconds of a step, as HAP counts; search_s and trace_s in CPU seconds.

    cost: one vector of ratios, or one for each segment. tensor_cost: one for each tensor, re-slices paid.
    rounded ones: the same programs with slices of whole units. whole_cost: the optimum of those.
    """

    setting: Setting
    parameters: int
    flops: int
    trace_s: float
    search_s: float
    cost: float
    tensor_search_s: float
    tensor_cost: float
    rounded_cost: float
    rounded_tensor_cost: float
    whole_cost: float
    dp_even_cost: float
    dp_proportional_cost: float
    ratios: tuple[tuple[float, ...], ...]
    tensor_ratios: tuple[tuple[float, ...], ...]
    exchanges: Mapping[str, int]
    tensor_exchanges: Mapping[str, int]
    notes: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        return BENCHMARKS[self.setting.model].title


def searched(setting: Setting) -> Searched:
    """Trace, search with one vector and with one for each tensor."""
    recording, parameters, trace_s = traced(
        setting.model, tuple(setting.arguments.items()), setting.segmented
    )
    machine = HapMachine.of(setting.speeds, setting.bandwidths)
    wider = VectorFor.SEGMENT if setting.segmented else VectorFor.PROGRAM
    search_s, plan = timed(lambda: plan_hap(recording.graph(), machine, wider, setting.extra_ps))
    tensor_s, by_tensor = timed(
        lambda: plan_hap(recording.graph(), machine, VectorFor.TENSOR, setting.extra_ps)
    )
    graph = recording.graph()
    return Searched(
        setting,
        parameters,
        graph.flops,
        trace_s,
        search_s,
        plan.seconds,
        tensor_s,
        by_tensor.seconds,
        plan.rounded_s,
        by_tensor.rounded_s,
        plan_hap(graph, machine, VectorFor.TENSOR, setting.extra_ps, whole=True).seconds,
        even_s(graph, machine),
        proportional_s(graph, machine),
        plan.used,
        by_tensor.used,
        exchanges(plan),
        exchanges(by_tensor),
        notes(plan, graph.uncounted),
    )


@cache
def traced(model: str, arguments: Sizes, segmented: bool) -> tuple[HapRecording, int, float]:
    """The calls of a model's step, its parameters, and the CPU seconds that both took."""
    benchmark = BENCHMARKS[model]

    def run() -> tuple[HapRecording, int]:
        with torch.device("meta"):
            built, inputs = benchmark.build(**dict(arguments))
        ends = benchmark.segment_ends if segmented else ()
        parameters = sum(held.numel() for held in built.parameters())
        return record(built, inputs, segment_ends=ends), parameters

    seconds, (recording, parameters) = timed(run)
    return recording, parameters, seconds


def timed(run: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds of this process and of those that it started and awaited, and the result."""
    before = cpu_s()
    found = run()
    return cpu_s() - before, found


def cpu_s() -> float:
    children = getrusage(RUSAGE_CHILDREN)
    return process_time() + children.ru_utime + children.ru_stime


def exchanges(plan: HapPlan) -> dict[str, int]:
    """How many there are of each kind, forward; a re-slice changes the ratios of a cut."""
    found: Counter[str] = Counter()
    for _, step in plan.program.steps:
        for _, before, after in step.moves:
            found[exchange_name(before, after)] += 1
    return dict(sorted(found.items()))


def exchange_name(before: int, after: int) -> str:
    if is_cut(before) and is_cut(after):
        return "re-slice" if cut_of(before)[0] == cut_of(after)[0] else "all-to-all"
    if is_cut(after):
        return "slice" if not before else "reduce-scatter"
    return "all-gather" if is_cut(before) else "all-reduce"


def check_models(names: list[str]) -> None:
    """A name that is none of the benchmarks' is an error that lists them."""
    bad = sorted(set(names) - set(BENCHMARKS))
    if bad:
        raise OptionError(f"no benchmark model {', '.join(bad)}", details=[("known", ", ".join(BENCHMARKS))])
