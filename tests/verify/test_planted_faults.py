"""A hundred faults planted in right programs: each is caught, its report names the tensor and both sides."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hspmd_compiler as hspmd
from hspmd_compiler.artifact.store import Artifact, load
from hspmd_compiler.artifact.write import write
from hspmd_compiler.errors import HspmdError, VerifyError
from hspmd_compiler.ir import graph_json
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.models.models import load_model
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.verify.artifact import names_of, prove_values, verify_artifact
from hspmd_compiler.verify.random_batch import draw_batch
from hspmd_compiler.verify.reference import Reference, find_reference
from hspmd_compiler.verify.shape.fit import check_fit
from hspmd_compiler.verify.shape.shape_segments import ShapeBook
from hspmd_compiler.verify.training import compare_training

from .planted import KINDS, Kind, Plant

SGD = OptimizerConfig(OptimizerName.SGD, lr=0.1)
SIZES = {"layers": "2", "heads": "4", "hidden": "16", "seq": "6", "vocab": "22"}
LLAMA = {**SIZES, "ffn": "20", "kv_heads": "2"}
STAGES = P((S((0, 1), (0, 1)), S((2,), (1, 2))), (2, 1))
SUBJECTS = {
    "unequal": ("llama-tiny", LLAMA, Strategy((STAGES, P((S((3, 4), (0, 2)),), (3,))))),
    "sequence": (
        "llama-tiny",
        LLAMA,
        Strategy(
            (P((S((0, 1), (0, 1)), S((2, 3), (1, 2))), (1, 1)), P((S((4, 5, 6), (0, 2)),), (2,))),
            sequence_parallel=True,
        ),
    ),
    "tied": (
        "gpt2-tiny",
        SIZES,
        Strategy((STAGES, P((S((3,), (0, 1)), S((4,), (1, 2))), (1, 1)))),
    ),
    "kv": (
        "llama-tiny",
        LLAMA,
        Strategy((P((S((0, 1, 2, 3), (0, 2)),), (1, 1)), P((S((4, 5), (0, 2)),), (2,)))),
    ),
}
COUNTS = {
    "dropped send": 14,
    "swapped tags": 8,
    "group in another order": 14,
    "wrong length": 14,
    "cycle": 8,
    "missing gradient reduction": 12,
    "wrong offset": 11,
    "gradients left alone": 6,
    "double count": 7,
    "gradient given twice": 6,
}
BATCHES = 3
RANK = re.compile(r"ranks? \d+")
SEED = 20


@dataclass(frozen=True)
class Subject:
    """A right artifact, and what its values are proved with. book: of its segments by shape."""

    artifact: Artifact
    graph: LogicalGraph
    reference: Reference
    batches: list[dict[str, Tensor]]
    book: ShapeBook

    def fit(self, plant: Plant) -> HspmdError | None:
        """What is seen by shape."""
        program = plant()
        assert program != self.artifact.program
        try:
            check_fit(program, names_of(replace(self.artifact, program=program)), self.book)
        except VerifyError as error:
            return error
        return None

    def values(self, plant: Plant, located: bool) -> HspmdError | None:
        """What is seen in numbers. located: traced to the first wrong value."""
        broken = replace(self.artifact, program=plant())
        try:
            if located:
                prove_values(broken, self.graph, self.reference, self.batches)
            else:
                compare_training(broken.program, self.reference, self.batches, SGD)
        except VerifyError as error:
            return error
        return None


@cache
def subject(name: str) -> Subject:
    model, arguments, strategy = SUBJECTS[name]
    artifact = hspmd.compile(load_model(model, arguments), strategy=strategy, optimizer=SGD).artifact
    graph = graph_json.decode(artifact.graph)
    reference = find_reference(artifact, None)
    generator = torch.Generator().manual_seed(0)
    drawn = [draw_batch(graph, reference.examples, generator) for _ in range(BATCHES)]
    batches = [{name: each.values for name, each in of.items()} for of in drawn]
    return Subject(artifact, graph, reference, batches, ShapeBook())


def chosen(kind: Kind) -> Iterator[tuple[str, Plant]]:
    """The faults of one kind: seeded, spread over the subjects that have a place for it."""
    places = {name: list(kind.places(subject(name).artifact.program)) for name in SUBJECTS}
    pick = random.Random(SEED)
    for found in places.values():
        pick.shuffle(found)
    for number in range(COUNTS[kind.name]):
        able = [name for name in SUBJECTS if places[name]]
        name = able[number % len(able)]
        yield name, places[name].pop()


def test_there_are_a_hundred() -> None:
    assert sum(COUNTS.values()) == 100 and COUNTS.keys() == {kind.name for kind in KINDS}


@pytest.mark.parametrize("name", SUBJECTS)
def test_what_is_right_passes(name: str) -> None:
    right = subject(name)
    check_fit(right.artifact.program, book=right.book)
    assert compare_training(right.artifact.program, right.reference, right.batches[:1], SGD).steps


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_planted_fault_is_caught(kind: Kind, expect: Callable[[str, str], None]) -> None:
    texts = []
    for number, (name, plant) in enumerate(chosen(kind)):
        found = subject(name).fit(plant)
        assert (found is not None) is kind.by_shape, f"{kind.name} {number} of {name}"
        if found is None:
            found = subject(name).values(plant, located=number < 1 or kind.name == "wrong offset")
        assert found is not None, f"{kind.name} {number} of {name} is not caught"
        texts.append(str(found))
        assert names_tensor_and_sides(texts[-1]), texts[-1]
    expect(f"planted/{kind.name.replace(' ', '_')}", texts[0])


def names_tensor_and_sides(text: str) -> bool:
    """A parameter or a value, and two ranks, or a rank and eager, or a rank and what is missing."""
    tensor = "tensor " in text or "weight" in text or "bias" in text
    sides = {part for line in text.splitlines() for part in RANK.findall(line)}
    missing = "in no bucket" in text or "elements are received" in text
    return tensor and bool(sides) and (len(sides) > 1 or missing or "eager" in text or "instead of" in text)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind.by_shape else pytest.mark.slow) for kind in KINDS],
    ids=lambda kind: kind.name,
)
def test_a_planted_fault_is_caught_in_a_saved_artifact(kind: Kind, tmp_path: Path) -> None:
    """Written with right hashes, so that nothing but the proof can see it."""
    name, plant = next(chosen(kind))
    broken = replace(subject(name).artifact, program=plant())
    write(tmp_path / "broken", broken)
    with pytest.raises(HspmdError) as error:
        verify_artifact(load(tmp_path / "broken"), values=not kind.by_shape)
    assert RANK.search(str(error.value))
