"""One program of rows that pipelines share, cut anywhere in each step: equal to one eager call on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.base.context import ContextCut, member_runs
from hspmd_compiler.errors import DeduceError
from hspmd_compiler.models.builtin_models import LlamaSize
from hspmd_compiler.passes.sized.probes import coincidences, degrees_of, probes_of
from hspmd_compiler.program.sized.instantiate import instantiate
from hspmd_compiler.program.sized.plan_check import check_plan
from hspmd_compiler.program.sized.sizes import Count, MicroSizes
from hspmd_compiler.program.sized.step_plan import StepPlan
from hspmd_compiler.strategy.context_spec import ContextChoice, ContextSpec
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import SizesSpec, Strategy
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.verify.eager import whole_state

from .sized_cases import SizedCase
from .test_sized_compile import Attending, by_positions, every_other, rows
from .test_sized_dropout import everywhere

HIGH = 1200
BOTH, ONE, TWO = (0, 2), (0, 1), (1, 2)
LLAMA = LlamaSize(2, 16, 4, 24, kv_heads=2, vocab=32, seq=20, packed=1)
TRIPLE = P((S((0, 1), BOTH),), (1,)), P((S((2,), BOTH),), (1,)), P((S((3,), BOTH),), (1,))
STAGES = (
    P((S((0, 1), ONE), S((2,), TWO)), (1,)),
    P((S((3,), ONE), S((4, 5), TWO)), (1,)),
    P((S((6,), BOTH),), (1,)),
)
RING, GATHER, HEADS = ContextChoice.RING, ContextChoice.GATHER, ContextChoice.HEADS
SIZES = SizesSpec(tokens=(1, HIGH))
Look = Callable[[Tensor, Tensor], Tensor]


def of_triple(form: ContextChoice, cut: ContextCut = ContextCut.CONTIGUOUS, sp: bool = False) -> Strategy:
    return Strategy(
        TRIPLE, sequence_parallel=sp, context=(ContextSpec((0, 1, 2), form=form, cut=cut),), sizes=SIZES
    )


def of_pair(form: ContextChoice, cut: ContextCut = ContextCut.CONTIGUOUS) -> Strategy:
    beside = P((S((4,), BOTH),), (1,))
    return Strategy((*TRIPLE[:2], beside), context=(ContextSpec((0, 1), form=form, cut=cut),), sizes=SIZES)


CASES = {
    "ring": of_triple(RING),
    "ring, balanced, tokens split": of_triple(RING, ContextCut.BALANCED, True),
    "gather": of_triple(GATHER, sp=True),
    "gather, balanced": of_triple(GATHER, ContextCut.BALANCED),
    "heads": of_triple(HEADS),
    "heads, balanced": of_triple(HEADS, ContextCut.BALANCED),
    "two stages, one beside": Strategy(STAGES, context=(ContextSpec((1, 0), form=RING),), sizes=SIZES),
    "two groups": Strategy(
        (*TRIPLE, P((S((4,), BOTH),), (1,)), P((S((5,), BOTH),), (1,))),
        context=(ContextSpec((0, 3), form=HEADS), ContextSpec((2, 1), form=RING, cut=ContextCut.BALANCED)),
        sizes=SIZES,
        zero=2,
    ),
}
QUICK = ("ring", "two stages, one beside")


@cache
def case(name: str) -> SizedCase:
    torch.manual_seed(0)
    program = hspmd.compile(LLAMA.build, strategy=CASES[name]).artifact.program
    model = LLAMA.build()[0]
    state = {
        key: value.double() if value.is_floating_point() else value
        for key, value in whole_state(model).items()
    }
    return SizedCase(lambda: LLAMA.build()[0], state, program, [])


def plan_of(strategy: Strategy, *taken: Sequence[int | tuple[int, ...]]) -> StepPlan:
    """taken: of each group, rings of its rows; then of each other pipeline, tokens of its own."""
    own: dict[int, tuple[MicroSizes, ...]] = {}
    first, left = 0, list(taken)
    for spec in strategy.context:
        for ring in left.pop(0):
            assert isinstance(ring, tuple)
            for pipeline, runs in zip(spec.pipelines, member_runs(ring, len(spec.pipelines)), strict=True):
                tokens = sum(high - low for low, high in runs)
                own[pipeline] = (*own.get(pipeline, ()), MicroSizes(1, tokens, (), ring, first))
            first += sum(ring)
    for pipeline in range(len(strategy.pipelines)):
        if strategy.context_of(pipeline) is None:
            for tokens in left.pop(0):
                assert isinstance(tokens, int)
                own[pipeline] = (*own.get(pipeline, ()), MicroSizes(1, tokens, first=first))
                first += tokens
    return StepPlan(tuple(own.get(pipeline, ()) for pipeline in range(len(strategy.pipelines))))


def batch_of(plan: StepPlan, seed: int = 0) -> dict[str, Tensor]:
    """Rows side by side, each of documents whose ends have nothing to do with the pieces."""
    drawn, parts = torch.Generator().manual_seed(seed), []
    for low, high in plan.rows(Count.TOKENS):
        places = torch.arange(high - low)
        parts.append(places % (1 + int(torch.randint(2, 40, (1,), generator=drawn))))
    positions = torch.cat(parts)[None]
    ids, labels = (torch.randint(0, 32, positions.shape, generator=drawn) for _ in range(2))
    labels[:, ::5] = -100
    return {"input_ids": ids, "labels": labels, "shift_labels": labels, "position_ids": positions}


def run(name: str, *taken: Sequence[int | tuple[int, ...]]) -> None:
    found, plan = case(name), plan_of(CASES[name], *taken)
    assert found.program.sizes is not None
    check_plan(plan, found.program.sizes)
    found.check(plan, batch_of(plan))


PIECES = [
    [(1, 127, 900), (5, 0, 2)],
    [(0, 0, 4)],
    [(900, 1, 127), (3, 4, 5), (900, 1, 127)],
]
BALANCED = [
    [(1, 100, 27, 400, 500, 0), (0, 0, 2, 3, 0, 0)],
    [(40, 3, 7, 9, 0, 1)],
]


@pytest.mark.parametrize(
    "name",
    [
        "ring",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in CASES
            if name.startswith(("gather", "heads"))
        ),
    ],
)
def test_pieces_of_any_lengths(name: str) -> None:
    for rings in BALANCED if "balanced" in name else PIECES:
        run(name, rings)


@pytest.mark.slow
def test_pieces_of_balanced_rings() -> None:
    for rings in BALANCED:
        run("ring, balanced, tokens split", rings)


def test_stages_and_a_pipeline_beside() -> None:
    """The group, or the pipeline, with nothing to do; a row whose first member has none of it."""
    run("two stages, one beside", [(7, 30), (0, 9)], [11, 3])
    run("two stages, one beside", [], [40])
    run("two stages, one beside", [(13, 0)], [])


@pytest.mark.slow
def test_two_groups() -> None:
    run("two groups", [(7, 30), (0, 9)], [(2, 3, 9, 1)], [])
    run("two groups", [], [(0, 70, 0, 5), (1, 1, 0, 0)], [3])


def test_probes_tell_all_pieces_apart() -> None:
    """Pieces of members are pairwise unlike, and no two sizes give the same numbers."""
    for strategy in CASES.values():
        probes = probes_of(strategy, Count.TOKENS, 1, HIGH)
        assert not coincidences(probes, strategy, Count.TOKENS, degrees_of(strategy, Count.TOKENS))
        for probe in probes:
            for spec in strategy.context:
                ring = probe.plan.pipelines[spec.pipelines[0]][0].ring
                assert len(set(ring)) == len(ring) and sum(ring) == probe.tokens


def test_a_probe_gives_its_own_program() -> None:
    """Steps of exchanges that begin before they end keep their slots; every rank has its piece."""
    program = case("ring").program
    assert program.sizes is not None and program.cuts_samples
    for probe in program.sizes.probes:
        made = instantiate(program, probe)
        for own in made.ranks:
            held = [piece.tokens for piece in own.pieces]
            assert held == [micro.tokens for micro in probe.pipelines[own.pipeline]]


def test_a_mask_of_no_kind_is_refused_for_members() -> None:
    with pytest.raises(DeduceError, match="not told which documents they hold") as error:
        hspmd.compile(Attending(every_other), rows(), strategy=of_triple(RING))
    assert "test_sized_compile.py" in str(error.value)


class Squared(Attending):
    """A loss that is divided by the number of all tokens of the step."""

    def forward(self, ids: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + self.look(block(x), positions)
        return nn.functional.mse_loss(self.head(x)[..., 0], labels.float())


def attending(kind: type[Attending], look: Look, strategy: Strategy) -> SizedCase:
    """A model whose tokens meet in `look`."""
    torch.manual_seed(0)
    model = kind(look)
    program = hspmd.compile(model, rows(), strategy=strategy).artifact.program
    state = {key: value.double() for key, value in whole_state(model).items()}
    return SizedCase(lambda: kind(look), state, program, [])


@pytest.mark.parametrize(
    ("kind", "look"),
    [(Attending, everywhere), (Squared, by_positions)],
    ids=["dropout", "mean of all tokens"],
)
def test_what_counts_tokens_of_the_step(kind: type[Attending], look: Look) -> None:
    """Dropout is numbered by token of the step, and a mean is of all of them, wherever a row is cut."""
    strategy = replace(of_pair(RING), sequence_parallel=True)
    found = attending(kind, look, strategy)
    for rings in [(7, 5), (0, 9)], [(30, 1)]:
        plan = plan_of(strategy, rings, [11])
        drawn = batch_of(plan)
        ids, labels = (drawn[name] % 16 for name in ("input_ids", "labels"))
        found.check(plan, {"ids": ids, "labels": labels, "positions": drawn["position_ids"]})


def test_dropout_in_two_runs_of_a_row_is_refused() -> None:
    with pytest.raises(DeduceError, match="random numbers for tokens of a balanced cut"):
        attending(Attending, everywhere, of_pair(RING, ContextCut.BALANCED))
