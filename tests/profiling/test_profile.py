"""`hspmd profile`: a small one of real processes, and what its parts do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from hspmd_compiler.base.comm_plan import CommKind
from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.cli.main import main
from hspmd_compiler.cluster.cluster import ClusterSpec
from hspmd_compiler.cluster.read import read_cluster
from hspmd_compiler.profiling import profile as profile_module
from hspmd_compiler.profiling.calibrated import usable_cores
from hspmd_compiler.profiling.exchanges import COLLECTIVES, collective_step, transfer_step
from hspmd_compiler.profiling.layer_models import LayerKind, LayerModel
from hspmd_compiler.profiling.meeting import hosts_of
from hspmd_compiler.profiling.one_rank import OneRank, compiled
from hspmd_compiler.profiling.plan import GroupShape, ProfilePlan, group_shapes, pairs_of, plan_for
from hspmd_compiler.program.boxes import received_volumes, sent_volumes
from hspmd_compiler.program.program import Op

SMALL = {LayerModel(LayerKind.DECODER, 64, 16, layers): (1, 2) for layers in (1, 4)}
PLAN = ProfilePlan(DeviceKind.CPU, SMALL, 2, (4096, 65536), (4096, 65536))
GIVEN = {
    "version": 1,
    "nodes": [
        {"address": "a", "devices": [{"count": 2, "kind": "cpu", "memory": 1 << 30}]},
        {"address": "b", "devices": [{"count": 1, "kind": "cuda A100", "memory": 1 << 30}]},
    ],
    "link": {"bandwidth": 1e9, "latency": 1e-4},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, object]]]:
    """A profile of two ranks, by the command; what it said."""
    folder = tmp_path_factory.mktemp("profile")
    (folder / "given.json").write_text(json.dumps(GIVEN))
    patch = pytest.MonkeyPatch()
    patch.setattr(profile_module, "plan_for", lambda kind, quick, most: PLAN)
    patch.delenv("RANK", raising=False)
    said: list[dict[str, object]] = []
    patch.setattr("builtins.print", lambda text, **kwargs: said.append(json.loads(text)))
    flags = ["--ranks", "2", "--quick", "--json", "--cluster", str(folder / "given.json")]
    try:
        assert main(["profile", "-o", str(folder / "c.yaml"), *flags]) == 0
    finally:
        patch.undo()
    return folder / "c.yaml", said


def test_a_profile_reads_back_with_all_its_parts(
    written: tuple[Path, list[dict[str, object]]],
) -> None:
    cluster = read_cluster(written[0])
    calibration = cluster.calibration
    assert calibration is not None
    assert (calibration.device, calibration.threads) == ("cpu", 1)
    assert (calibration.torch, calibration.sends) == (torch.__version__, "async")
    classes = {"matmul", "attention", "elementwise", "reduction", "view", "copy", "index"}
    assert {name.partition(":")[0] for name in calibration.operators} >= classes
    product = calibration.operators["matmul:float32"]
    assert 1e9 < 1 / (product.per_flop_s or product.per_byte_s) < 1e15
    places = {f"{kind.value}:2:one_node" for kind in COLLECTIVES}
    assert set(calibration.collectives) == places | {"gradient:2:one_node"}
    assert all(0 < fit.seconds(0, 65536) < 1 for fit in calibration.collectives.values())
    assert {"send", "local", "local:both_ways", "local:packed"} <= set(calibration.exchange)
    assert all(0 < fit.busy < 5 for fit in calibration.collectives.values())
    assert [each.ranks for each in calibration.at_once] == [1, 2]
    assert all(0.2 < each.factor < 5 for each in calibration.at_once)
    usual = min(2, cluster.nodes[0].cores or usable_cores())
    assert calibration.at_once[usual - 1].factor == 1.0
    assert 0 < calibration.instruction_s < 1e-2
    assert calibration.update.seconds(0, 1 << 20) > 0
    assert calibration.platform_bytes > 1 << 26
    (layer,) = calibration.layers
    assert (layer.kind, layer.tp, layer.dtype) == ("decoder-64-16", 1, "float32")
    assert [each.micro_batch for each in layer.times] == [1, 2]


def test_what_was_given_of_a_cluster_stays(written: tuple[Path, list[dict[str, object]]]) -> None:
    cluster = read_cluster(written[0])
    before = read_cluster(GIVEN)
    assert [node.devices for node in cluster.nodes] == [node.devices for node in before.nodes]
    assert cluster.link == before.link
    link = cluster.nodes[0].link
    assert link is not None and [size for size, _ in link.curve] == [4096, 65536]
    assert cluster.nodes[1].link is None


def test_progress_comes_to_its_end(written: tuple[Path, list[dict[str, object]]]) -> None:
    *steps, summary = written[1]
    assert [step["done"] for step in steps] == list(range(1, len(steps) + 1))
    assert {step["of"] for step in steps} == {len(steps)}
    assert isinstance(summary["summary"], list)


def test_one_rank_alone_has_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ProfilePlan(DeviceKind.CPU, {next(iter(SMALL)): (1,)}, 1, (4096,), (4096,))
    monkeypatch.setattr(profile_module, "plan_for", lambda kind, quick, most: small)
    monkeypatch.delenv("RANK", raising=False)
    assert main(["profile", "-o", str(tmp_path / "c.json"), "--ranks", "1", "--json"]) == 0
    cluster: ClusterSpec = read_cluster(tmp_path / "c.json")
    assert cluster.calibration is not None and not cluster.calibration.exchange
    assert cluster.nodes[0].link is None and cluster.nodes[0].cores


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--ranks", "0", "--threads", "0"], ["--ranks", "--threads"]),
        (["--device", "cuda", "--ranks", "2"], ["CUDA"]),
        (["--cluster", "none.yaml"], ["none.yaml"]),
        (["-o", "no/such/folder.yaml"], ["no"]),
    ],
)
def test_what_can_not_be_measured_is_told(
    flags: list[str],
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert main(["profile", *flags]) == 2
    error = capsys.readouterr().err
    assert all(text in error for text in said), error
    assert not (tmp_path / "cluster.yaml").exists()


def test_groups_are_of_one_host_and_spread_over_all() -> None:
    assert group_shapes([0]) == []
    one = [GroupShape((0, 1), "one_node"), GroupShape((0, 1, 2), "one_node")]
    assert group_shapes([0, 0, 0]) == one
    across = [(shape.ranks, shape.place) for shape in group_shapes([0, 0, 1, 1])]
    assert across == [
        ((0, 1), "one_node"),
        ((0, 2), "across"),
        ((0, 1, 2), "across"),
        ((0, 1, 2, 3), "across"),
    ]
    assert [len(shape.ranks) for shape in group_shapes([0] * 24)] == [2, 4, 8, 16, 24]


def test_pairs_talk_all_at_once() -> None:
    assert pairs_of([0, 0, 0, 0, 0], across=False) == [(0, 1), (2, 3)]
    assert pairs_of([0, 0, 1, 1], across=True) == [(0, 2), (1, 3)]
    assert pairs_of([0, 0], across=True) == []


def test_hosts_are_as_torchrun_fills_them() -> None:
    assert hosts_of(4, {"LOCAL_WORLD_SIZE": "2"}) == (0, 0, 1, 1)
    assert hosts_of(3, {}) == (0, 0, 0)


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_members_agree_in_what_a_collective_moves(kind: CommKind) -> None:
    group, elements = (1, 3, 4), 12
    step = collective_step(kind, 0, group, elements)
    if kind is CommKind.ALL_REDUCE:
        return
    sent, received = sent_volumes(step), received_volumes(step)
    assert sent == received == dict.fromkeys(group, elements // len(group))


def test_a_packed_message_is_as_long_as_a_plain_one() -> None:
    for padded in (False, True):
        step = transfer_step(0, 1, 0, 8, padded)
        assert sent_volumes(step) == {0: 8} and received_volumes(step) == {1: 8}


def test_a_quick_plan_is_part_of_the_whole_one() -> None:
    quick, whole = (plan_for(DeviceKind.CPU, is_quick, 1 << 40) for is_quick in (True, False))
    assert set(quick.models) < set(whole.models)
    assert whole.message_bytes[0] == 4 << 10 and whole.message_bytes[-1] == 256 << 20
    assert set(quick.message_bytes) < set(whole.message_bytes)
    assert max(plan_for(DeviceKind.CPU, False, 1 << 20).message_bytes) == 1 << 20


def test_layers_train_as_any_model() -> None:
    """The passes of each size of micro-batch stand in the program that is timed."""
    model = LayerModel(LayerKind.ENCODER, 64, 16, 2)
    rank = OneRank(compiled(model, (1, 2), DeviceKind.CPU), torch.device("cpu"))
    parts = rank.step()
    done: Mapping[int, Op] = {
        part.position: rank.plan.program.instructions[part.position].op for part in parts
    }
    assert rank.sizes == [1, 2]
    assert sorted(done) == list(range(len(rank.plan.program.instructions)))
