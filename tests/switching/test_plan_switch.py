"""Plans of switches between drawn strategies, element by element."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch

from hspmd_compiler.errors import SwitchError
from hspmd_compiler.options import Precision
from hspmd_compiler.program.boxes import volume
from hspmd_compiler.program.program import RankProgram, Shard
from hspmd_compiler.program.state.state_elements import kinds_of
from hspmd_compiler.program.switch_plan import COPY, GRAD, VALUE, SwitchPlan, SwitchScope
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.switching.links import links_of_nodes
from hspmd_compiler.switching.plan import Programs, plan_switch
from hspmd_compiler.switching.sender_rules import SenderRule
from hspmd_compiler.switching.totals import totals

from ..training.test_memory_savers import BATCH, LAYERS, graph_of, strategy_of
from ..training.training_cases import program_for
from .by_element import check_plan
from .carried_out import carried_out, filled, wholes_of

MOMENTS = ("exp_avg", "exp_avg_sq")
DEVICES = 20
QUICK, ALL = 4, 60


def programs_of(subject: str, precision: Precision, strategy: Strategy) -> dict[int, RankProgram]:
    """By device, which is the world rank here."""
    return {rank.device: rank for rank in program_for(graph_of(subject, precision), strategy).ranks}


def drawn_pair(number: int, subjects: tuple[str, ...]) -> tuple[Programs, Programs, Random]:
    """Two strategies of one model, with any ZeRO level each."""
    random = Random(number)
    subject = random.choice(subjects)
    narrow = subject != "normed" and random.random() < 0.5
    precision = Precision.BFLOAT16 if narrow else Precision.MODEL
    made = [replace(strategy_of(random, subject), zero=random.randint(0, 3)) for _ in range(2)]
    return programs_of(subject, precision, made[0]), programs_of(subject, precision, made[1]), random


def check_pair(number: int, subjects: tuple[str, ...]) -> None:
    before, after, random = drawn_pair(number, subjects)
    links = links_of_nodes([random.randrange(3) for _ in range(DEVICES)], random.random() < 0.5)
    scope, rule = random.choice(list(SwitchScope)), random.choice(list(SenderRule))
    for each_scope, each_rule in ((scope, SenderRule.LEAST_LOAD), (SwitchScope.STATE, rule)):
        plan = plan_switch(before, after, links, scope=each_scope, moments=MOMENTS, rule=each_rule)
        check_plan(plan, before, after, MOMENTS)
        check_state(plan, before, after)
        found = totals(plan, links)
        assert found.inter_node.bytes >= found.inter_node_bound_bytes
        if each_rule is SenderRule.LEAST_LOAD:
            assert found.inter_node.bytes == found.inter_node_bound_bytes
    assert plan == plan_switch(before, after, links, moments=MOMENTS, rule=rule), "plans are the same again"


def check_state(plan: SwitchPlan, before: Programs, after: Programs) -> None:
    """Carried out, it leaves each rank with what it would have cut out of the whole, to the bit."""
    wholes = wholes_of([*before.values(), *after.values()], kinds_of(plan.scope, MOMENTS))
    given, wanted = filled(before, wholes, plan, MOMENTS, False), filled(after, wholes, plan, MOMENTS, True)
    found = carried_out(plan, before, after, given, wanted)
    for key, tensor in wanted.items():
        assert torch.equal(found[key], tensor), key


@pytest.mark.parametrize("number", range(QUICK))
def test_every_element_arrives_once_from_one_that_has_it(number: int) -> None:
    check_pair(number, ("odd", "normed"))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(QUICK, ALL))
def test_every_element_arrives_once_in_many_drawn_switches(number: int) -> None:
    check_pair(number, ("odd", "normed", "llama", "gpt2"))


PIPELINES = Strategy(
    (
        PipelineSpec((StageSpec((0, 1), (0, LAYERS)),), (5,)),
        PipelineSpec((StageSpec((2, 3), (0, LAYERS)),), (5,)),
    )
)
STAGES = Strategy((PipelineSpec((StageSpec((0, 1), (0, 1)), StageSpec((2,), (1, LAYERS))), (BATCH,)),))
LINKS = links_of_nodes([0] * DEVICES)


def odd(strategy: Strategy, precision: Precision = Precision.MODEL) -> dict[int, RankProgram]:
    return programs_of("odd", precision, strategy)


def without(programs: Programs, *lost: int) -> dict[int, RankProgram]:
    return {rank: program for rank, program in programs.items() if rank not in lost}


def test_lost_ranks_cost_nothing_where_another_pipeline_holds_the_same() -> None:
    before, after = without(odd(PIPELINES), 3), odd(STAGES)
    check_plan(plan_switch(before, after, LINKS, moments=MOMENTS), before, after, MOMENTS)


def test_elements_that_nobody_holds_are_named() -> None:
    before, after = without(odd(replace(PIPELINES, zero=1)), 3), odd(STAGES)
    with pytest.raises(SwitchError) as error:
        plan_switch(before, after, LINKS, names=("two", "three"), moments=MOMENTS)
    assert str(error.value) == ORPHANS
    plan = plan_switch(before, after, LINKS, moments=MOMENTS, missing_ok=True)
    check_plan(plan, before, after, MOMENTS, lost_ok=True)
    lost = {(part.name, kind) for each in plan.orphans() for part in each.parts for kind in each.kinds}
    assert lost
    assert not any(each.moves for each in plan.orphans())
    assert {kind for _, kind in lost} == set(MOMENTS), "VALUEs are on every holder"


ORPHANS = """\
SwitchError: elements of 7 parameters are on no rank that two has left
  layers.1.norm.bias   3 of exp_avg, 3 of exp_avg_sq
  layers.1.up.weight   10 of exp_avg, 10 of exp_avg_sq
  layers.1.up.bias     2 of exp_avg, 2 of exp_avg_sq
  layers.1.down.weight 14 of exp_avg, 14 of exp_avg_sq
  layers.1.down.bias   7 of exp_avg, 7 of exp_avg_sq
  head.weight          7 of exp_avg, 7 of exp_avg_sq
  head.bias            1 of exp_avg, 1 of exp_avg_sq
  rule                 a switch moves what some rank holds; with ZeRO a moment's element is on one rank alone
  fix                  take these from a checkpoint; without ZeRO another pipeline's ranks hold them too"""


def test_before_the_first_step_no_moments_move() -> None:
    plan = plan_switch(odd(PIPELINES), odd(STAGES), LINKS)
    assert {kind for each in plan.classes for kind in each.kinds} == {VALUE}


def test_a_copy_is_cast_where_its_value_arrives() -> None:
    """Without ZeRO every rank trains all that it reads, so that nothing but VALUEs and moments moves."""
    before, after = (odd(each, Precision.BFLOAT16) for each in (PIPELINES, STAGES))
    plan = plan_switch(before, after, LINKS, moments=MOMENTS)
    assert COPY not in {kind for each in plan.classes for kind in each.kinds}
    shared = odd(replace(PIPELINES, zero=1), Precision.BFLOAT16)
    copies = [each for each in plan_switch(before, shared, LINKS).classes if each.kinds == (COPY,)]
    assert copies
    assert {each.element_bytes for each in copies} == {2}


def test_parameters_flow_out_and_gradients_back() -> None:
    """A home with ZeRO keeps its optimizer's state; the other gets copies, and gives whole gradients."""
    home, other = (odd(each, Precision.BFLOAT16) for each in (replace(PIPELINES, zero=3), STAGES))
    out = plan_switch(home, other, LINKS, scope=SwitchScope.PARAMS)
    assert {each.kinds for each in out.classes} == {(COPY,)}
    assert {each.element_bytes for each in out.classes} == {2}
    back = plan_switch(other, home, LINKS, scope=SwitchScope.GRADS)
    assert {each.kinds for each in back.classes} == {(GRAD,)}
    assert {each.element_bytes for each in back.classes} == {4}
    needed = [volume(part.boxes) * len(each.needers) for each in back.classes for part in each.parts]
    assert sum(needed) == sum(volume([own for own, _ in shard.owned]) for shard in trained(home))


def trained(programs: Programs) -> list[Shard]:
    return [shard for program in programs.values() for shard in program.shards if shard.trainable]


def test_buffers_and_tied_parameters_move_once() -> None:
    for subject, name in (("normed", "layers.0.1.running_mean"), ("gpt2", "transformer.wte.weight")):
        before, after = (programs_of(subject, Precision.MODEL, each) for each in (PIPELINES, STAGES))
        plan = plan_switch(before, after, LINKS, moments=MOMENTS)
        check_plan(plan, before, after, MOMENTS)
        parts = [part.name for each in plan.classes for part in each.parts if VALUE in each.kinds]
        assert name in parts
        assert "lm_head.weight" not in parts


def test_other_parameters_are_all_named() -> None:
    before = odd(STAGES)
    changed = {rank: with_other_types(program) for rank, program in odd(STAGES).items()}
    with pytest.raises(SwitchError) as error:
        plan_switch(before, changed, LINKS, names=("A", "B"))
    assert str(error.value) == OTHER


def with_other_types(program: RankProgram) -> RankProgram:
    """Heads in another type, scales in another shape."""
    shards = [
        replace(shard, dtype="float64")
        if shard.name == "head.weight"
        else replace(shard, whole_shape=(1, 1))
        if shard.name == "scale"
        else shard
        for shard in program.shards
    ]
    return replace(program, shards=shards)


OTHER = """\
SwitchError: A and B have other parameters
  scale       shape [1] and [1, 1]
  head.weight type float32 and float64
  rule        a switch moves the state of one model in one precision
  fix         compile both strategies for the same model, with the same --precision"""


def test_other_views_of_a_whole_are_refined() -> None:
    """One strategy sees a parameter of 12 x 2 as it is, the other as 3 x 4 x 2 that the second dim cuts."""
    before = {0: one_shard((12, 2), ((0, 5), (0, 2))), 1: one_shard((12, 2), ((5, 12), (0, 2)))}
    after = {
        0: one_shard((3, 4, 2), ((0, 3), (0, 1), (0, 2))),
        1: one_shard((3, 4, 2), ((0, 3), (1, 4), (0, 2))),
    }
    for given, wanted in ((before, after), (after, before)):
        plan = plan_switch(given, wanted, LINKS)
        check_plan(plan, given, wanted, ())
        assert {part.view for each in plan.classes for part in each.parts} == {(3, 4, 2)}


def one_shard(view: tuple[int, ...], box: tuple[tuple[int, int], ...]) -> RankProgram:
    program = next(iter(odd(STAGES).values()))
    local = tuple(high - low for low, high in box)
    pair = (box, tuple((0, size) for size in local))
    shard = Shard("w", "float32", local, local, (12, 2), view, (pair,), (pair,), True, False)
    return replace(program, shards=[shard], grad_buckets=[])
