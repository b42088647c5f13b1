"""A switch carried out by all ranks of a process, against state that is cut from whole tensors anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile, record_function

from hspmd_compiler.errors import InternalError
from hspmd_compiler.program.program import RankProgram
from hspmd_compiler.program.switch_plan import Move, StatePart, SwitchClass, SwitchPlan, SwitchScope
from hspmd_compiler.runtime.switching import messages
from hspmd_compiler.runtime.switching.carry import carrying
from hspmd_compiler.runtime.switching.held import HeldState, StateLayout
from hspmd_compiler.runtime.switching.stages import stages_of, without_moments
from hspmd_compiler.runtime.switching.streams import phases
from hspmd_compiler.switching.links import links_of
from hspmd_compiler.switching.plan import plan_switch

from ..training.test_zero_training import CASES
from ..training.training_cases import graph_of, program_for
from .drawn_switches import (
    CPU,
    MOMENTS,
    Layouts,
    Letters,
    Parameter,
    Tensors,
    brute_plan,
    carried,
    differences,
    drawn_layouts,
    drawn_parameters,
    drawn_tensors,
    gradients_to_apply,
    read_by_segments,
    state_of,
)

SEEDS = st.integers(0, 1 << 30)
MESSAGES = (1, 40, 1000)


@pytest.fixture(autouse=True, scope="module")
def _few_go_alone() -> Iterator[None]:
    """Each test draws anew how many elements go by themselves."""
    before = messages.ALONE_BYTES
    yield
    messages.ALONE_BYTES = before


def drawn(seed: int) -> tuple[Random, dict[int, StateLayout], dict[int, StateLayout], Tensors]:
    """Two strategies of up to five ranks, and a whole state."""
    random = Random(seed)
    ranks = random.randint(1, 5)
    parameters = drawn_parameters(random)
    before, after = (drawn_layouts(random, parameters, ranks) for _ in range(2))
    messages.ALONE_BYTES = random.choice((1, 16, 1 << 16))
    return random, before, after, drawn_tensors(random, parameters)


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_state_is_that_of_whole_tensors(seed: int) -> None:
    """Any cut and level of ZeRO, all types, relays; the source is let go."""
    random, before, after, tensors = drawn(seed)
    plan = brute_plan(random, before, after)
    held = {rank: state_of(layout, tensors) for rank, layout in before.items()}
    found = carried(plan, held, after, random.choice(MESSAGES))
    for rank, layout in after.items():
        assert not differences(found[rank], state_of(layout, tensors))
        left = {key for key in held[rank].tensor_keys() if key not in found[rank].tensor_keys()}
        assert not left, f"rank {rank} still has {left}"


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_before_the_first_step_there_are_no_moments(seed: int) -> None:
    random, before, after, tensors = drawn(seed)
    plan = without_moments(brute_plan(random, before, after))
    held = {rank: state_of(layout, tensors, steps=False) for rank, layout in before.items()}
    found = carried(plan, held, after, random.choice(MESSAGES))
    for rank, layout in after.items():
        assert not differences(found[rank], state_of(layout, tensors, steps=False))


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_a_source_that_is_kept_is_whole(seed: int) -> None:
    random, before, after, tensors = drawn(seed)
    held = {rank: state_of(layout, tensors) for rank, layout in before.items()}
    found = carried(brute_plan(random, before, after), held, after, random.choice(MESSAGES), keep_source=True)
    for rank, layout in after.items():
        assert not differences(held[rank], state_of(before[rank], tensors))
        assert not differences(found[rank], state_of(layout, tensors))


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_what_segments_read_flows_out_and_gradients_flow_back(seed: int) -> None:
    random, home, other, tensors = drawn(seed)
    out, back = SwitchScope.PARAMS, SwitchScope.GRADS
    held = {rank: state_of(layout, tensors) for rank, layout in home.items()}
    found = carried(
        brute_plan(random, home, other, out), held, other, random.choice(MESSAGES), keep_source=True
    )
    for rank, layout in other.items():
        assert not differences(found[rank], read_by_segments(state_of(layout, tensors, steps=False)))
    there = {rank: state_of(layout, tensors, grads=True) for rank, layout in other.items()}
    found = carried(
        brute_plan(random, other, home, back), there, home, random.choice(MESSAGES), keep_source=True
    )
    for rank, layout in home.items():
        if layout.shards != other[rank].shards:  # else the very tensors are handed over, all of them
            assert not differences(found[rank], gradients_to_apply(layout, tensors))


ROUND = 4096
LARGE = [Parameter(f"p{number}", "float32", (12, 100), True) for number in range(6)]


def peak_of(plan: SwitchPlan, rank: int, before: Layouts, after: Layouts, tensors: Tensors) -> int:
    """The most bytes that are alive in one rank's switch, by torch's own account."""
    letters: Letters = {}
    others = {each: state_of(layout, tensors) for each, layout in before.items()}
    carried(plan, others, after, ROUND, letters=letters)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        held = state_of(before[rank], tensors)
        with record_function("switch"):
            for letter in carrying(plan, rank, held, after[rank], CPU, ROUND):
                for peer in letter.arriving:
                    for number, came in enumerate(letters[peer, rank].pop(0)):
                        letter.arriving[peer][number].copy_(came)
                del letter
    events = sorted(seen.profiler.kineto_results.events(), key=lambda event: event.start_ns())  # type: ignore[union-attr]
    begin = next(event.start_ns() for event in events if event.name() == "switch")
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    live = sum(size for at, size in changes if at < begin)
    return max(accumulate((size for at, size in changes if at >= begin), initial=live))


@pytest.mark.parametrize("compute", ["", "bfloat16"])
@pytest.mark.parametrize("seed", range(3))
def test_memory_is_bounded(seed: int, compute: str) -> None:
    """By what is said before, which is exact up to what goes out and in in one round."""
    random = Random(seed)
    parameters = [replace(each, compute=compute) for each in LARGE]
    before, after = (drawn_layouts(random, parameters, 3) for _ in range(2))
    tensors = drawn_tensors(random, parameters)
    plan = brute_plan(random, before, after)
    messages.ALONE_BYTES = 100 if seed % 2 else 1 << 16
    for rank in range(3):
        held = state_of(before[rank], tensors).tensor_keys()
        stages = stages_of(plan, rank, before[rank], after[rank], held, ROUND)
        peak = peak_of(plan, rank, before, after, tensors)
        assert stages.peak_bytes() - 3 * ROUND <= peak <= stages.peak_bytes()


def test_what_a_plan_leaves_out_is_told() -> None:
    parameter = Parameter("w", "float32", (4,), True)
    layout = drawn_layouts(Random(0), [parameter], 1)[0]
    run = carrying(SwitchPlan("a", "b", SwitchScope.STATE, ()), 0, HeldState(StateLayout()), layout, CPU)
    with pytest.raises(InternalError, match="the plan of the switch a:b doesn't fit world rank 0") as told:
        next(run)
    assert ("value of w", "0 elements come, 4 are needed") in told.value.details


@pytest.mark.parametrize(
    ("holders", "needers", "moves", "wrong"),
    [
        ((0,), (1,), (Move(0, 1, 0, 4),), {0: "before", 1: "after"}),
        ((0,), (0,), (), {0: "before"}),
    ],
)
def test_names_that_only_a_plan_knows_are_told(
    holders: tuple[int, ...], needers: tuple[int, ...], moves: tuple[Move, ...], wrong: dict[int, str]
) -> None:
    """Of a plan that was changed by hand, and hangs together by itself."""
    layouts = drawn_layouts(Random(0), [Parameter("w", "float32", (4,), True)], 1)
    part = StatePart("x", (4,), (((0, 4),),))
    strange = SwitchClass(("value",), 4, holders, needers, (part,), moves)
    plan = SwitchPlan("a", "b", SwitchScope.STATE, (strange,))
    for rank, when in wrong.items():
        with pytest.raises(InternalError, match=f"switch a:b doesn't fit world rank {rank}") as told:
            next(carrying(plan, rank, HeldState(layouts[0]), layouts[0], CPU))
        assert told.value.details == (("x", f"the rank has no such parameter or buffer {when} the switch"),)
        assert told.value.rule and told.value.fix == "compile again"


def test_a_view_of_another_size_is_told() -> None:
    layout = drawn_layouts(Random(0), [Parameter("w", "float32", (4,), True)], 1)[0]
    part = StatePart("w", (5,), (((0, 4),),))
    plan = SwitchPlan("a", "b", SwitchScope.STATE, (SwitchClass(("value",), 4, (0,), (0,), (part,), ()),))
    with pytest.raises(InternalError, match="doesn't fit world rank 0") as told:
        next(carrying(plan, 0, HeldState(layout), layout, CPU))
    assert told.value.details == (("w", "[5] is no view of [4], as it is before it"),)


def test_relays_wait_for_what_they_pass_on() -> None:
    moves = (Move(2, 3, 0, 4, True), Move(1, 2, 2, 4, True), Move(0, 1, 0, 4), Move(0, 2, 0, 2))
    assert dict(phases(moves)) == {moves[2]: 0, moves[3]: 0, moves[1]: 1, moves[0]: 2}


def whole_tensors(layouts: Layouts, seed: int) -> Tensors:
    """Values for every parameter and buffer of compiled programs."""
    shards = {name: shard for layout in layouts.values() for name, shard in layout.shards.items()}
    parameters = [
        Parameter(name, shard.dtype, shard.whole_shape, name in gradients_in(layouts))
        for name, shard in shards.items()
    ]
    return drawn_tensors(Random(seed), parameters)


def gradients_in(layouts: Layouts) -> set[str]:
    return {name for layout in layouts.values() for name in layout.gradients}


COMPILED = [
    ("mlp-ce", "empty-unlike", "mixed", ""),
    *(
        pytest.param(subject, source, target, compute, marks=pytest.mark.slow)
        for subject, compute in (("gpt2", ""), ("llama-kv1", "bfloat16"), ("mlp-mse", "bfloat16"))
        for source, target in permutations(("dp3", "dp2-pp2", "sp", "empty-unlike", "tp32", "mixed"), 2)
    ),
]


@pytest.mark.parametrize(("subject", "source", "target", "compute"), COMPILED)
def test_compiled_strategies_switch(subject: str, source: str, target: str, compute: str) -> None:
    """Under any two levels of ZeRO, by our plans; processes that one of the two leaves idle, too."""
    random = Random(f"{subject} {source} {target}")
    zeros = {name: random.randrange(4) for name in (source, target)}
    ends = [compiled(subject, name, zero, compute) for name, zero in zeros.items()]
    devices = sorted({device for program in ends for device in program})
    first, second = (
        {rank: program[device] for rank, device in enumerate(devices) if device in program}
        for program in ends
    )
    before, after = (
        {rank: StateLayout.of(program.get(rank)) for rank in range(len(devices))}
        for program in (first, second)
    )
    plan = plan_switch(first, second, links_of(None, devices), moments=MOMENTS)
    tensors = whole_tensors(before, 1)
    held = {rank: state_of(layout, tensors) for rank, layout in before.items()}
    found = carried(plan, held, after, random.choice((1 << 10, 1 << 13)))
    for rank, layout in after.items():
        assert not differences(found[rank], state_of(layout, tensors)), zeros


def compiled(subject: str, case: str, zero: int, compute: str) -> dict[int, RankProgram]:
    """Programs by device, with copies in another type where segments read such."""
    program = program_for(graph_of(subject), replace(CASES[case], zero=zero))
    ranks = {own.device: own for own in program.ranks}
    for own in ranks.values():
        own.shards = [replace(shard, compute=compute) if shard.trainable else shard for shard in own.shards]
    return ranks
