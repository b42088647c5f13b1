"""Whole estimates: sums, flops, pipelines, memory, advice and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hspmd_compiler.api import compile
from hspmd_compiler.artifact.store import Artifact, load
from hspmd_compiler.artifact.write import write
from hspmd_compiler.base.pipeline_schedule import ScheduleKind, build_schedule
from hspmd_compiler.base.timeline import SpanKind
from hspmd_compiler.cluster.calibration import AtOnce, Calibration, Fit, HeldMemory
from hspmd_compiler.cluster.cluster import ClusterSpec, DeviceSpec
from hspmd_compiler.cluster.link import LinkSpec
from hspmd_compiler.cluster.read import write_cluster
from hspmd_compiler.cluster.written import cluster_form
from hspmd_compiler.cost_models import estimate as module
from hspmd_compiler.cost_models.compute import DeviceRates
from hspmd_compiler.cost_models.estimate import Estimate, estimate, estimate_artifact
from hspmd_compiler.cost_models.steps import advice
from hspmd_compiler.cost_models.steps.shared_hosts import stretches
from hspmd_compiler.errors import ClusterError, EstimateError
from hspmd_compiler.program.program import Op
from tests.cost_models.priced import DP, MIXED, NIC, PP, TP, cluster, compiled, device, layers_of

Expect = Callable[[str, str], None]
SAME = [
    {"stages": [{"devices": [0], "layers": 2}, {"devices": [1], "layers": 2}], "micro_batches": [1, 1]},
    {"stages": [{"devices": [2], "layers": 2}, {"devices": [3], "layers": 2}], "micro_batches": [1, 1]},
]

FOUR = [{"stages": [{"devices": [at], "layers": 4}], "micro_batches": [2]} for at in range(4)]


def priced(artifact: Artifact, spec: ClusterSpec, **more: Any) -> Estimate:
    return estimate(artifact.program, spec, artifact.manifest.optimizer, layers=layers_of(artifact), **more)


def fits(**more: Any) -> Calibration:
    """Every operator takes 1 ms, all else nothing."""
    given: dict[str, Any] = {
        "operators": {"other:float32": Fit(1e-3)},
        "exchange": {},
        "collectives": {},
        "update": Fit(0.0),
        "instruction_s": 0.0,
        "platform_bytes": 0,
        "sends": "async",
        **more,
    }
    return Calibration("2026-11-28", torch.__version__, "cpu", 1, **given)


def test_one_rank_is_busy_all_the_time() -> None:
    found = priced(compiled(DP[:1]), cluster([device()]))
    (rank,) = found.ranks
    assert rank.busy_s == pytest.approx(found.step_s)
    assert found.bubble == pytest.approx(0)
    assert found.mfu == pytest.approx(found.model_flops / (found.step_s * 1e13))
    assert found.links == ()
    assert found.bound.startswith("compute of rank 0")


def test_a_compiled_program_says_what_it_costs(tmp_path: Path) -> None:
    """From the cluster as a value and as a file."""
    program = compile("llama-tiny", strategy={"pipelines": DP[:1]})
    spec = cluster([device()])
    write_cluster(spec, tmp_path / "c.yaml")
    assert program.estimate(tmp_path / "c.yaml").step_s == program.estimate(spec).step_s > 0


def test_an_artifact_is_priced_without_its_graph(tmp_path: Path) -> None:
    artifact = compiled(MIXED)
    write(tmp_path / "a", artifact)
    read = load(tmp_path / "a", with_graph=False)
    spec = cluster([device()] * 2, [device()] * 2)
    assert (read.graph, read.layouts) == (None, None)
    assert estimate_artifact(read, spec).step_s == priced(artifact, spec).step_s


def test_model_flops_do_not_depend_on_the_strategy() -> None:
    spec = cluster([device()] * 2)
    whole = priced(compiled(DP[:1]), cluster([device()])).model_flops
    split = priced(compiled(TP), spec).model_flops
    again = priced(compiled([{**DP[0], "recompute": "full"}]), cluster([device()])).model_flops
    assert split == pytest.approx(whole)
    assert again == pytest.approx(whole, rel=0.01)


def test_a_pipeline_fills_and_drains() -> None:
    """As busy as its slowest stage, and longer by what the other does before and behind."""
    found = priced(compiled(PP), cluster([device()], [device()]))
    busy = [rank.busy_s for rank in found.ranks]
    assert max(busy) < found.step_s < sum(busy)
    assert found.bubble == pytest.approx(1 - sum(busy) / (2 * found.step_s))
    assert {share.kind for share in found.path} == {"compute", "link"}
    assert sum(share.seconds for share in found.path) == pytest.approx(found.step_s, rel=1e-6)


def test_a_receive_that_is_posted_ahead_comes_sooner() -> None:
    """On a slow link a message is under way while its receiver computes; on none it changes nothing."""
    spec = cluster([device()], [device()])
    slow = replace(spec, nodes=tuple(replace(node, nic=LinkSpec(2e6, 1e-4)) for node in spec.nodes))
    steps = [priced(compiled(PP, receives_ahead=ahead), slow).step_s for ahead in (0, 1, 2)]
    assert steps[0] > 1.03 * steps[1] and steps[1] >= steps[2]
    waiting = priced(compiled(DP, receives_ahead=2), slow).step_s
    assert waiting == priced(compiled(DP, receives_ahead=0), slow).step_s


def test_weights_apart_leave_a_smaller_bubble() -> None:
    """Named and as a text, which costs the same; on ranks that are not the first, in more memory at most."""
    stages = [{"devices": [at], "layers": 1} for at in range(4)]
    given = {"stages": stages, "micro_batches": [1] * 8}
    text = build_schedule(ScheduleKind.ZB_H1, 4, 8).text()
    spec = cluster([device(peak=1e11)] * 4)
    plain, apart, by_hand = (
        priced(compiled([{**given, **own}], **more), spec)
        for own, more in (({}, {}), ({}, {"schedule": "zb-h1"}), ({"schedule": text}, {}))
    )
    assert apart.step_s < 0.97 * plain.step_s and apart.bubble < plain.bubble - 0.02
    assert by_hand.step_s == apart.step_s
    assert apart.model_flops == pytest.approx(plain.model_flops)
    assert apart.ranks[0].memory.peak.total == plain.ranks[0].memory.peak.total


def test_devices_in_several_stages_leave_a_smaller_bubble() -> None:
    """Interleaved 1F1B of two stages each, and a V, beside 1F1B of as many layers on as many devices."""
    spec = cluster([device(peak=1e11)] * 2)
    stages = [[{"devices": [at], "layers": 1} for at in order] for order in ((0, 1, 0, 1), (0, 1, 1, 0))]
    given = [PP, *([{"stages": own, "micro_batches": [1] * 6}] for own in stages)]
    plain, ring, v = (priced(compiled(each), spec) for each in given)
    assert max(ring.step_s, v.step_s) < plain.step_s
    assert max(ring.bubble, v.bubble) < plain.bubble - 0.04
    assert ring.model_flops == pytest.approx(plain.model_flops)
    assert sum(v.traffic.values()) < sum(ring.traffic.values())
    assert ring.timeline.labels[0] == "rank 0: cpu, pipeline 0 stage 0 and 2"


def test_the_timeline_has_every_instruction() -> None:
    artifact = compiled(MIXED)
    found = priced(artifact, cluster([device()] * 2, [device()] * 2))
    for own in artifact.program.ranks:
        spans = {span.position for span in found.timeline.of(own.rank)}
        assert spans == set(range(len(own.instructions)))
    assert found.timeline.labels[2] == "rank 2: cpu, pipeline 0 stage 1"
    assert {point.rank for point in found.timeline.memory} == {0, 1, 2, 3}


def test_a_slower_device_bounds_the_step() -> None:
    quick, slow = device(), device(peak=1e12)
    found = priced(compiled(PP), cluster([quick, slow]))
    assert found.bound.startswith("compute of rank 1 (pipeline 0 stage 1, cpu)")
    assert found.step_s > priced(compiled(PP), cluster([quick, quick])).step_s


def test_faster_links_are_worth_what_is_said() -> None:
    spec = cluster([device()] * 2, [device()] * 2)
    found = priced(compiled(MIXED), spec)
    told = {one.change: one.step_s for one in found.advice}
    faster = replace(NIC, bandwidth=2 * NIC.bandwidth)
    with_it = replace(spec, nodes=tuple(replace(node, nic=faster) for node in spec.nodes))
    assert told["twice the bandwidth between nodes"] == pytest.approx(priced(compiled(MIXED), with_it).step_s)
    assert len(found.advice) <= 3
    assert [one.gain for one in found.advice] == sorted((one.gain for one in found.advice), reverse=True)


def test_a_layer_moves_from_the_slow_device() -> None:
    found = priced(compiled(PP), cluster([device(), device(peak=1e11)]))
    first = found.advice[0]
    assert first.change == "move one layer of pipeline 0 from stage 1 to stage 0"
    assert 0.1 < first.gain < 0.6


def test_rows_move_to_the_faster_pipeline() -> None:
    artifact = compiled(SAME)
    found = priced(artifact, cluster([device(), device()], [device(pace=4), device(pace=4)]))
    assert "move 1 micro-batch from pipeline 1 to pipeline 0" in [one.change for one in found.advice]


def test_alike_pipelines_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried on one of two alike pipelines takes as long as on both."""
    spec = cluster([device()] * 2, [device()] * 2)
    both = priced(compiled(SAME), spec).advice
    monkeypatch.setattr(advice, "SIMULATED", 0)
    first = priced(compiled(SAME), spec).advice
    assert [one.change for one in first] == [one.change for one in both]
    assert [one.step_s for one in first] == pytest.approx([one.step_s for one in both])


def test_meetings_one_by_one_end_as_those_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that share processors meet at each collective, others once for all that follow on each other."""
    spec = cluster([device()] * 2)
    together = priced(compiled(TP), spec)
    nodes = tuple(replace(node, cores=64) for node in spec.nodes)
    monkeypatch.setattr(module.StepPricer, "__init__", _apart(module.StepPricer.__init__))
    one_by_one = priced(compiled(TP), replace(spec, nodes=nodes))
    assert one_by_one.step_s == pytest.approx(together.step_s)
    assert len(one_by_one.timeline.spans) > len(together.timeline.spans)


def _apart(made: Callable[..., None]) -> Callable[..., None]:
    return lambda self, *given: made(self, *given[:-1], True)


def test_cpu_ranks_share_the_processors_of_their_node() -> None:
    spec = cluster([device()] * 2)
    crowded = replace(spec, nodes=tuple(replace(node, cores=1) for node in spec.nodes))
    free, shared = priced(compiled(DP), spec), priced(compiled(DP), crowded)
    assert shared.step_s > 1.2 * free.step_s


def with_cores(spec: ClusterSpec, cores: int) -> ClusterSpec:
    return replace(spec, nodes=tuple(replace(node, cores=cores) for node in spec.nodes))


def computed_s(found: Estimate) -> float:
    return max(rank.phases_s[SpanKind.FORWARD] + rank.phases_s[SpanKind.BACKWARD] for rank in found.ranks)


def test_ranks_that_compute_at_once_slow_each_other_as_measured() -> None:
    """Two replicas always compute at once; a rank alone is what it was measured alone."""
    at_once = (AtOnce(1, 0.8), AtOnce(2, 1.0), AtOnce(4, 1.25))
    plain, measured = (
        replace(with_cores(cluster([device()] * 4), 4), calibration=fits(at_once=held))
        for held in ((), at_once)
    )
    for pipelines, factor in ((FOUR[:1], 0.8), (FOUR[:2], 1.0), (FOUR, 1.25)):
        before, after = (computed_s(priced(compiled(pipelines), spec)) for spec in (plain, measured))
        assert after == pytest.approx(factor * before, rel=1e-6)
    crowded = computed_s(priced(compiled(FOUR), with_cores(measured, 2)))
    assert crowded == pytest.approx(2 * 1.25 * before, rel=1e-6)


def test_a_paced_rank_slows_nobody_where_there_are_processors_enough() -> None:
    """It sleeps most of the time."""
    spec = replace(
        with_cores(cluster([device(pace=4.0)] * 2), 2),
        calibration=fits(at_once=(AtOnce(1, 0.5), AtOnce(2, 2.0))),
    )
    bare = replace(spec, calibration=fits())
    assert priced(compiled(DP), spec).step_s == priced(compiled(DP), bare).step_s


@pytest.mark.parametrize("cores", [1, 2, 4])
@pytest.mark.parametrize("pipelines", [FOUR[:2], PP, FOUR], ids=["replicas", "stages", "four"])
def test_the_closed_form_of_sharing_is_never_shorter_than_simulated(pipelines: list[Any], cores: int) -> None:
    """Exact where all ranks always compute; with stages longer, as some wait while others compute."""
    at_once = (AtOnce(1, 0.9), AtOnce(2, 1.0), AtOnce(4, 1.2))
    count = len({d for one in pipelines for stage in one["stages"] for d in stage["devices"]})
    spec = replace(with_cores(cluster([device()] * count), cores), calibration=fits(at_once=at_once))
    rates = DeviceRates.of(device(), "cpu", spec.calibration)
    slots = dict(enumerate(spec.slots))
    (factor,) = set(stretches(spec, slots, dict.fromkeys(slots, rates)).values())
    alone = replace(spec, nodes=tuple(replace(node, cores=None) for node in spec.nodes))
    free, shared = (computed_s(priced(compiled(pipelines), one)) for one in (alone, spec))
    assert shared <= factor * free * (1 + 1e-9)
    if pipelines is not PP:
        assert shared == pytest.approx(factor * free, rel=1e-6)


def test_collectives_take_processors_from_ranks_that_compute() -> None:
    """Four ranks of two groups on two cores: one group sums while the other computes."""
    busy, idle = (
        replace(
            with_cores(cluster([device()] * 4), 2),
            calibration=fits(collectives={"all_reduce:2:one_node": Fit(4e-3, busy=share)}),
        )
        for share in (0.5, 0.0)
    )
    stages = [{"devices": [0, 1], "layers": 2}, {"devices": [2, 3], "layers": 2}]
    strategy = [{"stages": stages, "micro_batches": [1] * 4}]
    assert priced(compiled(strategy), busy).step_s > 1.02 * priced(compiled(strategy), idle).step_s


def test_measured_operators_and_pace() -> None:
    """A pace makes computing longer, and says how long each instruction takes at least."""
    spec = replace(cluster([device()] * 2), calibration=fits())
    slow = replace(
        spec, nodes=tuple(replace(node, devices=(device(), device(pace=4.0))) for node in spec.nodes)
    )
    even, paced = priced(compiled(PP), spec), priced(compiled(PP), slow)
    forward = [rank.phases_s[SpanKind.FORWARD] for rank in paced.ranks]
    assert forward[0] == pytest.approx(even.ranks[0].phases_s[SpanKind.FORWARD])
    assert forward[1] == pytest.approx(4 * even.ranks[1].phases_s[SpanKind.FORWARD])
    (own,) = [own for own in compiled(PP).program.ranks if own.rank == 1]
    computing = [at for at, i in enumerate(own.instructions) if i.op in (Op.FORWARD, Op.BACKWARD)]
    assert set(computing) <= set(paced.least_s[1])
    assert sum(paced.least_s[1][computing[0]]) == pytest.approx(4 * sum(even.least_s[1][computing[0]]))


def test_platform_bytes_are_held_all_the_time() -> None:
    spec = cluster([device()])
    more = replace(spec, calibration=fits(platform_bytes=1 << 20))
    bare, held = (priced(compiled(DP[:1]), one).ranks[0].memory for one in (spec, more))
    assert held.peak.total - bare.peak.total == held.start - bare.start == 1 << 20


def test_what_is_held_beyond_tensors_grows_with_them() -> None:
    spec = cluster([device()])
    more = replace(spec, calibration=fits(held=HeldMemory(1 << 20, 0.25)))
    bare, held = (priced(compiled(DP[:1]), one).ranks[0].memory for one in (spec, more))
    for one, other in zip(
        (bare.start, *bare.peaks, *bare.held), (held.start, *held.peaks, *held.held), strict=True
    ):
        assert other == one + (1 << 20) + int(0.25 * one)
    assert held.peak.total == max(held.peaks) == bare.peak.total + held.peak.allocator


def test_a_profile_of_another_torch_says_so() -> None:
    old = replace(fits(), torch="1.0", device="cuda NVIDIA A100")
    found = priced(compiled(DP[:1]), replace(cluster([device()]), calibration=old))
    said = "the profile of 2026-11-28 was measured with"
    assert f"{said} torch 1.0, here it is {torch.__version__}" in found.notes
    assert f"{said} device cuda NVIDIA A100, here it is cpu" in found.notes
    assert "cpu: priced by figures, not by the profile" in found.notes
    same = priced(compiled(DP[:1]), replace(cluster([device()]), calibration=fits()))
    assert not any("profile" in note for note in same.notes)


def test_too_little_memory_bounds_a_step() -> None:
    found = priced(compiled(DP[:1]), cluster([device(memory=4 << 20)]))
    assert [one.rank for one in found.misfits] == [0]
    assert found.bound.startswith("memory: rank 0 needs ")


def test_a_program_of_no_named_device_is_priced_on_any() -> None:
    """Compiled for cpu; the catalogue knows the devices, and says which of its figures are uncertain."""
    bare = cluster([DeviceSpec("cuda A100-SXM4-80GB")] * 2, [DeviceSpec("cuda NVIDIA H20")] * 2)
    found = priced(compiled(MIXED), bare)
    assert [one.device for one in found.ranks] == ["A100-SXM4-80GB"] * 2 + ["NVIDIA H20"] * 2
    assert "compiled for cpu, priced as if for cuda: ranks 0-3" in found.notes
    assert any("A100-SXM4-80GB" in note and "from the catalogue" in note for note in found.notes)
    assert any("H20" in note and "uncertain" in note for note in found.notes)


def test_a_program_of_a_named_device_is_priced_on_that() -> None:
    artifact = compiled(DP[:1])
    named = [replace(own, device_kind="cuda A100") for own in artifact.program.ranks]
    program = replace(artifact.program, ranks=named)
    spec = [cluster([replace(device(), kind=f"cuda {name}")]) for name in ("A100-SXM4-80GB", "H20")]
    assert estimate(program, spec[0], artifact.manifest.optimizer).step_s > 0
    with pytest.raises(ClusterError, match="fit these machines"):
        estimate(program, spec[1], artifact.manifest.optimizer)


def test_missing_figures_are_told_all_at_once(expect: Expect) -> None:
    spec = cluster([device(), DeviceSpec("cpu")], [DeviceSpec("cpu"), device()])
    bare = replace(spec, nodes=tuple(replace(node, nic=None) for node in spec.nodes))
    with pytest.raises(EstimateError) as caught:
        priced(compiled(MIXED), bare)
    expect("estimate/missing_figures", str(caught.value))


def test_more_ranks_than_devices(expect: Expect) -> None:
    with pytest.raises(ClusterError) as caught:
        priced(compiled(MIXED), cluster([device()], [device()]), at="cluster.yaml")
    expect("estimate/too_few_devices", str(caught.value))


def test_bytes_of_a_link_are_those_of_the_messages() -> None:
    """Two stages, six micro-batches of one sample: its activations there, their gradients back."""
    found = priced(compiled(PP), cluster([device()], [device()], link=LinkSpec(1e9)))
    (link,) = found.links
    activation = 1 * 64 * 64 * 4
    gradients = found.traffic[0, 1] - 6 * activation
    assert link.name == "a - b"
    assert found.traffic[0, 1] == found.traffic[1, 0]
    assert gradients >= 0
    assert link.bytes == 2 * link.busiest_bytes == 2 * found.traffic[0, 1]


def test_a_compile_compares_ways_on_a_cluster() -> None:
    """Other ways of communication, the same numbers, and no longer step."""
    stages = [{"devices": [0, 1, 2], "layers": 2}, {"devices": [3, 4, 5], "layers": 2}]
    strategy = {"pipelines": [{"stages": stages, "micro_batches": [4, 2]}]}
    spec = cluster([device()] * 2, [device()] * 4)
    plain, near = (compile("llama-tiny", strategy=strategy, cluster=one) for one in (None, spec))
    assert near.artifact.program != plain.artifact.program
    assert near.estimate(spec).step_s <= plain.estimate(spec).step_s
    assert near.verify(values=True).values is not None
    assert near.artifact.cluster == cluster_form(spec) and plain.artifact.cluster is None
    bare = replace(spec, nodes=tuple(replace(node, nic=None) for node in spec.nodes))
    with pytest.raises(EstimateError, match=r"link a - b *for ranks 0,2"):
        compile("llama-tiny", strategy=strategy, cluster=bare)
