"""Unequal pieces are gathered in the form that the links make cheapest, and the numbers stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import hspmd_compiler as hspmd
from hspmd_compiler.api import CompiledProgram
from hspmd_compiler.base.comm_plan import Combine, CommKind, CommStep, GatherForm, Piece
from hspmd_compiler.cluster.cluster import ClusterSpec, NodeSlot
from hspmd_compiler.cluster.link import LinkSpec
from hspmd_compiler.cost_models.links import ClusterCost
from hspmd_compiler.cost_models.steps.comm_prices import StepComm
from hspmd_compiler.cost_models.steps.memory import gather_elements
from hspmd_compiler.errors import ArtifactError
from hspmd_compiler.pages.inspect import comm_page
from hspmd_compiler.pages.sections import Table
from hspmd_compiler.passes.gather_forms import cheapest_forms
from hspmd_compiler.program.check import check
from hspmd_compiler.program.program import Program
from hspmd_compiler.strategy.strategy import (
    GradientForm,
    LayoutWish,
    Override,
    PipelineSpec,
    StageSpec,
    Strategy,
)
from tests.cost_models.priced import cluster, device

from ..training.test_end_to_end_gloo import CONFIG, train_like_eager
from ..training.training_cases import ALL, SUBJECTS

NIC = LinkSpec(1e9, 0.0)
PAIRS = replace(cluster([device()] * 2, [device()] * 2, link=NIC))
"""Two machines of two ranks: what crosses the NIC twice costs more than what pads."""
APART = replace(cluster(*[[device()]] * 4, link=NIC))


def without_latency(spec: ClusterSpec) -> ClusterSpec:
    free = LinkSpec(1e9, 0.0)
    return replace(
        spec, nodes=tuple(replace(node, link=LinkSpec(1e12, 0.0), nic=free) for node in spec.nodes)
    )


def cost_of(spec: ClusterSpec) -> ClusterCost:
    slots = [NodeSlot(node, local) for node, of in enumerate(spec.nodes) for local in range(len(of.devices))]
    return ClusterCost(spec, dict(enumerate(slots)))


def gather(lengths: tuple[int, ...]) -> dict[int, CommStep]:
    """Each rank's flat piece to all."""
    ranks, ends = tuple(range(len(lengths))), [sum(lengths[: at + 1]) for at in range(len(lengths))]
    recvs = tuple(Piece(r, (((ends[r] - lengths[r], ends[r]),),)) for r in ranks if lengths[r])
    whole = (sum(lengths),)
    return {
        rank: CommStep(
            7,
            CommKind.ALL_GATHER,
            ranks,
            src_view=(size,),
            dst_view=whole,
            dst_shape=whole,
            sends=tuple(Piece(peer, (((0, size),),)) for peer in ranks if size),
            recvs=recvs,
        )
        for rank, size in enumerate(lengths)
    }


def scatter(lengths: tuple[int, ...]) -> dict[int, CommStep]:
    """Each rank's flat addend, of which each member sums its own piece."""
    ranks, ends = tuple(range(len(lengths))), [sum(lengths[: at + 1]) for at in range(len(lengths))]
    sends = tuple(Piece(r, (((ends[r] - lengths[r], ends[r]),),)) for r in ranks if lengths[r])
    return {
        rank: CommStep(
            7,
            CommKind.REDUCE_SCATTER,
            ranks,
            Combine.SUM,
            src_view=(sum(lengths),),
            dst_view=(size,),
            dst_shape=(size,),
            sends=sends,
            recvs=tuple(Piece(peer, (((0, size),),)) for peer in ranks if size),
        )
        for rank, size in enumerate(lengths)
    }


def forms(steps: dict[int, CommStep]) -> set[GatherForm]:
    return {step.form for step in steps.values()}


@pytest.mark.parametrize(
    ("spec", "lengths", "wanted"),
    [
        (PAIRS, (30, 20, 30, 20), GatherForm.PADDED),
        (PAIRS, (90, 0, 0, 1), GatherForm.BROADCASTS),
        (APART, (30, 29, 30, 29), GatherForm.ALL_TO_ALL),
        (PAIRS, (30, 30, 30, 30), GatherForm.ALL_TO_ALL),
    ],
    ids=["padded", "broadcasts", "exact", "equal"],
)
def test_the_cheapest_form_is_taken(spec: ClusterSpec, lengths: tuple[int, ...], wanted: GatherForm) -> None:
    cost = cost_of(without_latency(spec))
    steps = gather(tuple(length * 1000 for length in lengths))
    found = cheapest_forms(steps, cost)
    assert forms(found) == {wanted}
    plain = {rank: replace(step, form=GatherForm.ALL_TO_ALL, note="") for rank, step in found.items()}
    assert plain == steps
    if wanted is not GatherForm.ALL_TO_ALL:
        prices = cost.unequal_forms_s(
            CommKind.ALL_GATHER, (0, 1, 2, 3), [4000.0 * length for length in lengths]
        )
        assert min(prices, key=lambda form: prices[form]) is wanted


@pytest.mark.parametrize(
    ("spec", "lengths", "wanted"),
    [
        (PAIRS, (30, 20, 30, 20), GatherForm.PADDED),
        (PAIRS, (90, 0, 0, 1), GatherForm.ALL_TO_ALL),
        (APART, (30, 29, 30, 29), GatherForm.ALL_TO_ALL),
        (PAIRS, (30, 30, 30, 30), GatherForm.ALL_TO_ALL),
    ],
    ids=["padded", "exact", "apart", "equal"],
)
def test_sums_are_scattered_in_the_cheapest_form(
    spec: ClusterSpec, lengths: tuple[int, ...], wanted: GatherForm
) -> None:
    """Padded or exact; what is moved and priced is what is done."""
    cost = cost_of(without_latency(spec))
    steps = scatter(tuple(length * 1000 for length in lengths))
    found = cheapest_forms(steps, cost)
    assert forms(found) == {wanted}
    assert {rank: replace(step, form=GatherForm.ALL_TO_ALL, note="") for rank, step in found.items()} == steps
    own = compiled(None).artifact.program.ranks[0]
    comm = StepComm({rank: replace(own, rank=rank, comms=[step]) for rank, step in found.items()}, cost)
    prices = cost.unequal_forms_s(CommKind.REDUCE_SCATTER, (0, 1, 2, 3), [4000.0 * one for one in lengths])
    assert GatherForm.BROADCASTS not in prices
    if wanted is GatherForm.PADDED:
        assert min(prices, key=lambda form: prices[form]) is wanted
        assert comm.exchange_s(found[0]) == prices[wanted]
        assert comm.sent(found[1], 1) == dict.fromkeys(((1, 0), (1, 2), (1, 3)), 120000.0)


def test_sums_of_which_a_member_has_no_addend_are_exact() -> None:
    steps = scatter((30000, 20000, 30000, 20000))
    steps[0] = replace(steps[0], src_view=None, sends=())
    for rank in (1, 2, 3):
        steps[rank] = replace(steps[rank], recvs=steps[rank].recvs[1:])
    assert forms(cheapest_forms(steps, cost_of(without_latency(PAIRS)))) == {GatherForm.ALL_TO_ALL}


def test_what_not_all_members_get_alike_has_no_form() -> None:
    steps = gather((30000, 20000, 30000, 20000))
    steps[0] = replace(steps[0], sends=steps[0].sends[:-1])
    assert forms(cheapest_forms(steps, cost_of(without_latency(PAIRS)))) == {GatherForm.ALL_TO_ALL}


@pytest.mark.parametrize("form", GatherForm)
def test_a_form_is_priced_moved_and_held_as_it_is_done(form: GatherForm) -> None:
    """By the estimate; padded, each sends the longest piece; of equal pieces all forms hold as much."""
    lengths = (30000, 20000, 30000, 20000)
    steps = {rank: replace(step, form=form) for rank, step in gather(lengths).items()}
    cost = cost_of(without_latency(PAIRS))
    own = compiled(None).artifact.program.ranks[0]
    comm = StepComm({rank: replace(own, rank=rank, comms=[step]) for rank, step in steps.items()}, cost)
    prices = cost.unequal_forms_s(CommKind.ALL_GATHER, (0, 1, 2, 3), [4.0 * length for length in lengths])
    assert comm.exchange_s(steps[0]) == prices[form]
    sent = 120000.0 if form is GatherForm.PADDED else 80000.0
    assert comm.sent(steps[1], 1) == dict.fromkeys(((1, 0), (1, 2), (1, 3)), sent)
    assert gather_elements(replace(gather((5, 5))[0], form=form), 5, 10) == 20
    held = {GatherForm.ALL_TO_ALL: 220000, GatherForm.PADDED: 220000, GatherForm.BROADCASTS: 200000}
    assert gather_elements(steps[0], 30000, 100000) == held[form]


STRATEGY = Strategy(
    tuple(
        PipelineSpec((StageSpec((rank,), ALL, zero_shares=(weight,)),), sizes)
        for rank, (weight, sizes) in enumerate(zip((3, 2, 3, 2), ((2, 1), (3,), (1, 1), (2,)), strict=True))
    ),
    zero=3,
)


def compiled(spec: ClusterSpec | None, strategy: Strategy = STRATEGY) -> CompiledProgram:
    made = SUBJECTS["mlp-ce"]
    return hspmd.compile(
        lambda: (made.build(), made.batch(0)), strategy=strategy, optimizer=CONFIG, cluster=spec
    )


TOLD = [
    "all_gather padded float32 over [0, 1, 2, 3] "
    "(parameters; padded 20.0 us; broadcasts 22.2 us; all_to_all 22.2 us)"
]


def forms_told(program: CompiledProgram) -> list[str]:
    """What `hspmd inspect --comm` shows of gathers."""
    (steps,) = (
        part for part in comm_page(program.artifact) if isinstance(part, Table) and part.key == "steps"
    )
    return sorted({str(row[2]) for row in steps.rows if str(row[2]).startswith("all_gather")})


def gather_forms(program: Program) -> set[GatherForm]:
    return {step.form for own in program.ranks for step in own.comms if step.kind is CommKind.ALL_GATHER}


def test_a_program_says_its_forms_and_runs_them(tmp_path: Path) -> None:
    """Uneven owners on two machines: in processes, equal to eager; without a cluster as ever."""
    program = compiled(without_latency(PAIRS))
    assert gather_forms(program.artifact.program) == {GatherForm.PADDED}
    assert gather_forms(compiled(None).artifact.program) == {GatherForm.ALL_TO_ALL}
    assert forms_told(program) == TOLD
    program.verify(values=True)
    program.save(tmp_path / "artifact")
    train_like_eager("mlp-ce", tmp_path / "artifact")


def scatter_forms(program: Program) -> set[GatherForm]:
    return {step.form for own in program.ranks for step in own.comms if step.kind is CommKind.REDUCE_SCATTER}


@pytest.mark.parametrize("zero", [2, 3])
def test_gradients_are_scattered_padded(zero: int, tmp_path: Path) -> None:
    """Uneven owners of sums on two machines: in lockstep and in processes, equal to eager."""
    program = compiled(without_latency(PAIRS), replace(STRATEGY, zero=zero))
    assert scatter_forms(program.artifact.program) == {GatherForm.PADDED}
    assert scatter_forms(compiled(None).artifact.program) == {GatherForm.ALL_TO_ALL}
    program.verify(values=True)
    if zero == 2:
        program.save(tmp_path / "artifact")
        train_like_eager("mlp-ce", tmp_path / "artifact")


def test_activations_are_gathered_padded_too(tmp_path: Path) -> None:
    """Factors of samples that ranks share 3, 2, 3, 2, in processes."""
    stage = StageSpec((0, 1, 2, 3), ALL)
    strategy = Strategy(
        (PipelineSpec((stage,), (10,)),),
        overrides=(
            Override("**", duplicate=True),
            *(Override(name, duplicate=True, gradient=GradientForm.FACTORS) for name in ("blocks", "head")),
        ),
        layouts=(LayoutWish("x", "S0(3,2,3,2)"),),
    )
    program = compiled(without_latency(PAIRS), strategy)
    gathers = [step for step in program.artifact.program.ranks[0].comms if step.kind is CommKind.ALL_GATHER]
    assert {step.form for step in gathers if len(step.dst_shape or ()) == 2} == {GatherForm.PADDED}
    program.save(tmp_path / "artifact")
    train_like_eager("mlp-ce", tmp_path / "artifact")


def test_a_form_of_another_step_is_refused() -> None:
    program = compiled(None).artifact.program
    own = program.ranks[0]
    comms = [replace(step, form=GatherForm.PADDED, sends=step.sends[:-1]) for step in own.comms]
    with pytest.raises(ArtifactError, match="it does not give all members the same, as the form padded does"):
        check(replace(program, ranks=[replace(own, comms=comms), *program.ranks[1:]]))


def test_activations_are_scattered_padded(tmp_path: Path) -> None:
    """A pending sum of features becomes pieces of samples, 3, 2, 3, 2, in processes."""
    strategy = Strategy(
        (PipelineSpec((StageSpec((0, 1, 2, 3), ALL),), (10,)),),
        overrides=(Override("**", duplicate=True), Override("head.weight", split=1)),
        layouts=(LayoutWish("head", "S0(3,2,3,2)"),),
    )
    program = compiled(without_latency(PAIRS), strategy)
    assert GatherForm.PADDED in scatter_forms(program.artifact.program)
    program.verify(values=True)
    program.save(tmp_path / "artifact")
    train_like_eager("mlp-ce", tmp_path / "artifact")


def test_a_padded_sum_of_another_step_is_refused() -> None:
    program = compiled(None, replace(STRATEGY, zero=2)).artifact.program
    own = program.ranks[0]
    scatters = [step.kind is CommKind.REDUCE_SCATTER for step in own.comms]
    assert any(scatters)
    for form, change in ((GatherForm.BROADCASTS, {}), (GatherForm.PADDED, {"src_view": None, "sends": ()})):
        comms = [
            replace(step, form=form, **change) if scattered else step
            for step, scattered in zip(own.comms, scatters, strict=True)
        ]
        text = f"it does not have an addend of every sum, as the form {form.value} does"
        with pytest.raises(ArtifactError, match=text):
            check(replace(program, ranks=[replace(own, comms=comms), *program.ranks[1:]]))
