"""Rows that go to the owners of their experts: exact, whoever gets how many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.base.comm_plan import CommKind, Counted, GatherForm, Traffic
from hspmd_compiler.errors import ArtifactError, InternalError, StrategyError, VerifyError
from hspmd_compiler.passes.deduction.expert_form_choice import with_expert_form
from hspmd_compiler.program.boxes import received_volumes, sent_volumes
from hspmd_compiler.program.check import check
from hspmd_compiler.program.kernels.expert_product import expert_grad, expert_mm
from hspmd_compiler.program.program import Program
from hspmd_compiler.program.sized.counted_step import RowExchange, counted_step, even_load
from hspmd_compiler.strategy.form import form_of, strategy_from
from hspmd_compiler.strategy.strategy import ExpertForm, LayoutWish, Override, SizesSpec, Strategy
from hspmd_compiler.verify.eager import eager_step, whole_state

from ..program.test_to_fx import compare, run_three
from ..quick import quick_are
from ..trace.test_expert_rows import ALONE_ROWS, Inside, Layer
from ..training.equal_to_eager import Case
from ..training.test_end_to_end_gloo import CONFIG, train_like_eager
from ..training.training_cases import SUBJECTS, Subject
from .test_experts import (
    CAUSAL,
    DECODER,
    DEEPSEEK,
    EXPERTS,
    WIDTH,
    Dropping,
    FromConfig,
    P,
    Routed,
    S,
    batch,
    shared,
    tokens,
)


class Mlp(nn.Module):
    """Behind it tokens are cut among ranks, under sequence parallelism."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 12), nn.Linear(12, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).tanh())


class Mixed(nn.Module):
    """Two layers of two parts, the second of which has experts in the first layer."""

    def __init__(self, all_to: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Sequential(Mlp(), Routed(all_to)), Mlp()])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return nn.functional.mse_loss(x, y)


class Capped(nn.Module):
    """Tokens beyond an expert's places are dropped."""

    def __init__(self, places: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Sequential(Mlp(), Dropping(True, places)), Mlp()])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        made = self.layers[1](self.layers[0](x))
        return nn.functional.mse_loss(made, y) + 0.3 * self.layers[0][1].balance


@cache
def case(all_to: int | None = None) -> Case:
    return Case.of(lambda: Mixed(all_to), batch())


def exchanging(*experts: int, tokens_cut: bool = True, **more: object) -> Strategy:
    """Stages whose tokens go to the owners of their experts."""
    strategy = shared(*experts)
    form = ExpertForm.ALL_TO_ALL
    return replace(strategy, sequence_parallel=tokens_cut, expert_form=form, **more)  # type: ignore[arg-type]


def counted(program: Program) -> int:
    """Steps of the first rank whose sizes are data."""
    return sum(step.counted is not Counted.NO for step in program.ranks[0].comms)


@pytest.mark.parametrize("weights", [(1, 1), (3, 1, 1), (0, 1), (1, 0, 4)])
def test_shares_of_experts(weights: tuple[int, ...]) -> None:
    """Unequal ones, and a device without any."""
    assert counted(case().check(exchanging(*weights)))


@pytest.mark.parametrize("weights", [(1, 1), (1, 0, 4)])
def test_where_all_ranks_have_all_tokens(weights: tuple[int, ...]) -> None:
    """Nothing is sent: each takes its own, and the results are summed."""
    assert not counted(case().check(exchanging(*weights, tokens_cut=False)))


@pytest.mark.parametrize("all_to", [0, EXPERTS - 1])
def test_all_tokens_to_one_expert(all_to: int) -> None:
    for strategy in (exchanging(2, 3), exchanging(1, 1, 1, 1, 1), exchanging(4, 1, zero=3)):
        case(all_to).check(strategy)


def test_samples_that_ranks_share() -> None:
    """Each rank has some samples of a micro-batch, by a wish."""
    made = Case.of(Mixed, batch(), anchors=("layers.0.0.add",))
    strategy = exchanging(3, 1, layouts=(LayoutWish("layers.0.0.add", "S0"),), tokens_cut=False)
    assert counted(made.check(strategy))


def wide_exchanges(program: Program, width: int) -> list[str]:
    """Of the first rank's rows of this width, the ways that they go."""
    found = [step for step in program.ranks[0].comms if step.counted is not Counted.NO]
    return [step.counted.value for step in found if (step.src_view or (0, 0))[1] == width]


def test_a_row_goes_once_and_comes_back_once() -> None:
    """In each pass of each size of micro-batches, however many products and activations are between."""
    program = case().check(exchanging(1, 1))
    assert wide_exchanges(program, WIDTH) == ["out", "back"] * 4


def test_every_row_is_that_of_one_device(tmp_path: Path) -> None:
    """Also those that lie at their experts' owners, in pipelines that are alike, too; a dump says which."""
    stage = S((0, 1, 2), (0, 2), experts=(1, 0, 2))
    other = replace(stage, devices=(5, 4, 3))
    strategy = Strategy((P((stage,), (1, 1)), P((other,), (2,))), sequence_parallel=True)
    strategy = replace(strategy, expert_form=ExpertForm.ALL_TO_ALL)
    program = hspmd.compile(lambda: (Mixed(), batch()), strategy=strategy, dump=tmp_path)
    (told,) = tmp_path.glob("*-deduce.txt")
    assert "rows to their experts, as counted" in told.read_text()
    rows = program.verify(rows=True).rows
    assert rows is not None and {"hspmd.expert_mm.default", "aten.tanh.default"}.isdisjoint(
        dict(rows.left_out)
    )
    layouts = program.artifact.layouts
    assert isinstance(layouts, dict)
    for owned, error, text in (
        ([[[0, 3]], [], [[3, 5]]], VerifyError, "go to its experts"),
        ([[], [], []], ArtifactError, "one of which has experts"),
    ):
        layouts["owners"][0][2] = owned
        with pytest.raises(error, match=text):
            program.verify(rows=True)


class Between(nn.Module):
    """Something is done to the rows of experts between products of theirs."""

    def __init__(self, inside: Inside) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Sequential(Mlp(6), Layer(inside, ids=6)), Mlp(6)])

    forward = Mixed.forward


@pytest.mark.parametrize("inside", quick_are([*ALONE_ROWS], ["parts of rows"]))
def test_what_is_done_to_rows(inside: str) -> None:
    """Norms and their weights, slices, matrices' biases by expert; some rows go to none of the experts."""
    given = {key: value[..., :6] for key, value in batch().items()}
    assert counted(Case.of(lambda: Between(ALONE_ROWS[inside]), given).check(exchanging(3, 1, 1)))


@dataclass(frozen=True)
class Flat:
    """Costs of bytes, and of each exchange."""

    byte_s: float
    step_s: float

    def comm_s(self, traffic: Sequence[Traffic]) -> float:
        sizes = (each.size + sum(each.volumes.values()) for each in traffic)
        return max((self.byte_s * size + self.step_s for size in sizes), default=0.0)

    def all_gather_forms_s(self, group: Sequence[int], sizes: Sequence[float]) -> Mapping[GatherForm, float]:
        return {}

    def near(self, rank: int) -> frozenset[int] | None:
        return None


def test_the_cheaper_form_is_taken() -> None:
    """Rows to their experts are fewer bytes in more exchanges; a form that is named is kept."""
    graph, strategy = case().graph, replace(shared(1, 1, 1, 1), sequence_parallel=True)
    for cost, form in ((Flat(1.0, 0.0), ExpertForm.ALL_TO_ALL), (Flat(0.0, 1.0), ExpertForm.GATHER)):
        assert with_expert_form(graph, strategy, cost).expert_form is form
        named = replace(strategy, expert_form=ExpertForm.GATHER)
        assert with_expert_form(graph, named, cost) == named
    assert with_expert_form(graph, strategy, None) == strategy


FAMILIES = {
    "mixtral": {"num_local_experts": 5},
    "qwen2_moe": {"num_experts": 5, "moe_intermediate_size": 10},
    "gpt_oss": {"num_local_experts": 5, "head_dim": 8},
}
TWO = {"num_experts_per_tok": 2, "num_key_value_heads": 3}


@pytest.mark.parametrize("family", quick_are([*FAMILIES], ["mixtral"]))
def test_library_models(family: str) -> None:
    """Several choices of each token, weights of them, attention beside."""
    build = FromConfig(family, CAUSAL, {**DECODER, **TWO, **FAMILIES[family]})
    made = Case.of(build, tokens(torch.Generator().manual_seed(0)))
    stages = (S((0, 1), (0, 1), experts=(3, 1)), S((2, 3, 4), (1, 2), experts=(1, 0, 2)))
    strategy = Strategy((P(stages, (1, 1)), P((S((5,), (0, 2)),), (1,))), sequence_parallel=True)
    assert counted(made.check(replace(strategy, expert_form=ExpertForm.ALL_TO_ALL)))


@pytest.mark.parametrize("places", [1, 2])
def test_dropped_tokens(places: int) -> None:
    """An expert has places for so many tokens of a sample; others go by, and the auxiliary loss is global."""
    made = Case.of(lambda: Capped(places), batch())
    assert counted(made.check(exchanging(3, 1, 1)))


@pytest.mark.parametrize("own", [(), (Override("*.shared_experts.*", duplicate=True),)])
def test_experts_that_every_token_takes(own: tuple[Override, ...]) -> None:
    """Split, they need the tokens of all; whole on each device they leave them where they are."""
    made = Case.of(DEEPSEEK, tokens(torch.Generator().manual_seed(0)))
    stages = (S((0, 1), (0, 1)), S((4, 3, 2), (1, 2), experts=(1, 2, 1)))
    strategy = Strategy((P(stages, (1, 1)), P((S((5,), (0, 2)),), (1,))), overrides=own)
    strategy = replace(strategy, sequence_parallel=True, expert_form=ExpertForm.ALL_TO_ALL)
    program = made.check(strategy)
    assert any(step.counted is not Counted.NO for step in program.ranks[2].comms)


@pytest.mark.parametrize("weights", quick_are([(3, 2), (1, 0, 4)], [(1, 0, 4)]))
def test_processes_train_like_eager(
    weights: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SUBJECTS, "experts", Subject(Mixed, batch))
    program = hspmd.compile(
        lambda: (Mixed(), batch()), strategy=exchanging(*weights, zero=1), optimizer=CONFIG
    )
    program.save(tmp_path / "artifact")
    train_like_eager("experts", tmp_path / "artifact")


@pytest.mark.slow
def test_graphs_of_ranks_equal_eager(tmp_path: Path) -> None:
    """In an fx graph the step of what is counted is a value, too."""
    strategy = Strategy((P((S((0, 1, 2), (0, 2), experts=(3, 0, 2)),), (3, 1)),), sequence_parallel=True)
    model = Mixed()
    strategy = replace(strategy, expert_form=ExpertForm.ALL_TO_ALL)
    program = hspmd.compile(lambda: (model, batch()), strategy=strategy).artifact.program
    run_three(program, whole_state(model), batch(), tmp_path)
    compare(program, tmp_path, eager_step(model, batch(), widen=False))


def test_a_step_is_filled_in_with_what_is_counted() -> None:
    """Both ends find the same sizes; wrong counts are refused, as none come from a file."""
    steps = RowExchange(7, (2, 5), even_load((4, 2), (3, 3)), (3, 2), "float32", Counted.OUT).steps()
    filled = {rank: counted_step(step, rank, [[0, 4], [2, 0]]) for rank, step in steps.items()}
    assert [filled[rank].dst_shape for rank in (2, 5)] == [(2, 3, 2), (4, 3, 2)]
    assert sent_volumes(filled[2]) == {2: 0, 5: 24} and received_volumes(filled[5]) == {2: 24, 5: 0}
    back = counted_step(replace(steps[2], counted=Counted.BACK), 2, [[0, 4], [2, 0]])
    assert sent_volumes(back) == {2: 0, 5: 12} and received_volumes(back) == {2: 0, 5: 24}
    for wrong in ([[1, 2]], [[1, -1], [0, 0]], [[1], [2]]):
        with pytest.raises(InternalError):
            counted_step(steps[2], 2, wrong)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.data())
def test_an_even_load_adds_up(given_rows: list[int], data: st.DataObject) -> None:
    """Of each giver and each taker, nothing below zero, as even as whole numbers are."""
    cuts = sorted(data.draw(st.lists(st.integers(0, sum(given_rows)), min_size=2, max_size=3)))
    taken = [high - low for low, high in pairwise((0, *cuts, sum(given_rows)))]
    found = even_load(given_rows, taken)
    assert [sum(row) for row in found] == given_rows
    assert [sum(column) for column in zip(*found, strict=True)] == taken
    assert min(min(row) for row in found) >= 0


def test_forms_that_do_not_go_together(expect: Callable[[str, str], None]) -> None:
    """No experts, and sizes: told together."""
    plain = Strategy((P((S((0, 1), (0, 1)),), (1,)),))
    bad = replace(plain, expert_form=ExpertForm.ALL_TO_ALL, sizes=SizesSpec(samples=(1, 4)))
    with pytest.raises(StrategyError) as caught:
        strategy_from(form_of(bad))
    expect("deduce/expert_form_bad", caught.value.text())


def test_the_form_is_kept() -> None:
    strategy = exchanging(3, 1)
    assert strategy_from(form_of(strategy)) == strategy


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"counted": Counted.NO}, "comm 0 is counted, and is given no counts, or the other way round"),
        ({"kind": CommKind.ALL_GATHER}, "a counted step copies rows from all to all"),
        ({"src_view": (1, 2, 3)}, "a counted step moves rows, [rows, width]"),
        ({"dst_view": (6, 1)}, "the rows of a counted step are of one width"),
        ({"recvs": ()}, "a counted step names each of its members once"),
        ({"dst_view": None, "dst_shape": None, "recvs": ()}, "a counted step takes rows, and gives some"),
    ],
)
def test_steps_of_a_file(fields: dict[str, object], text: str) -> None:
    """What could not be filled in is refused when it is read."""
    program = deepcopy(case().check(exchanging(1, 1)))
    own = program.ranks[0]
    slot = next(slot for slot, step in enumerate(own.comms) if step.counted is not Counted.NO)
    own.comms[slot] = replace(own.comms[slot], **fields)  # type: ignore[arg-type]
    with pytest.raises(ArtifactError) as caught:
        check(program)
    assert text.replace("comm 0", f"comm {slot}") in caught.value.text()


def test_where_experts_end_is_read_once_for_all_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a layer, forward and backward; anew where the experts of rows have changed in place."""
    reads: list[int] = []
    whole, chosen = Tensor.cpu, torch.tensor([2, 0, 2, 1])
    monkeypatch.setattr(Tensor, "cpu", lambda self: reads.append(1) or whole(self))  # type: ignore[func-returns-value]
    rows, matrices = torch.randn(4, 3), torch.randn(3, 3, 5)
    made = expert_mm(rows, matrices, chosen)
    expert_mm(made, matrices.transpose(1, 2), chosen)
    expert_grad(rows, made, chosen, 3)
    assert len(reads) == 1
    assert torch.equal(made, torch.stack([rows[i] @ matrices[e] for i, e in enumerate([2, 0, 2, 1])]))
    chosen[0] = 1
    assert torch.equal(expert_mm(rows, matrices, chosen)[0], rows[0] @ matrices[1])
    held = expert_mm(rows, matrices[:1], chosen, ((2, 3),), 3)
    assert torch.equal(held[2], rows[2] @ matrices[0]) and not held[:2].any() and len(reads) == 3
