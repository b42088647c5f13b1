"""A program is proved by a smaller twin, or refused by name; what is no twin is told apart."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import hspmd_compiler as hspmd
from hspmd_compiler.artifact.store import Artifact, load
from hspmd_compiler.base.comm_plan import Combine
from hspmd_compiler.cluster.cluster import ClusterSpec, DeviceSpec, NodeSpec
from hspmd_compiler.cluster.link import LinkSpec
from hspmd_compiler.errors import ArtifactError, ClusterError, VerifyError
from hspmd_compiler.models.models import load_model
from hspmd_compiler.program.program import LocalRow, Program
from hspmd_compiler.strategy.strategy import Override, Strategy
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.verify.twin.size_map import SizeMap, reduced, split_pairs
from hspmd_compiler.verify.twin.twin import verify_twin

SIZES = {"layers": "2", "hidden": "96", "heads": "6", "kv_heads": "6", "ffn": "200", "vocab": "301"}
STRATEGY = Strategy(
    (
        *(P((S((3 * p, 3 * p + 1), (0, 1)), S((3 * p + 2,), (1, 2))), (1, 1)) for p in range(3)),
        P((S((9, 10, 11), (0, 2)),), (2,)),
    )
)


@cache
def whole() -> Artifact:
    return hspmd.compile(load_model("llama-tiny", SIZES), strategy=STRATEGY).artifact


def test_a_program_of_mixed_degrees_is_proved_by_its_twin() -> None:
    report = verify_twin(whole())
    assert report.ranks == (12, 9) and report.pipelines == (4, 3)
    assert report.sizes["ffn"] == (200, 20) and report.sizes["vocab"] == (301, 31)
    assert report.report.values is not None and report.report.values.steps
    data = json.loads(json.dumps(report.to_json()))
    assert data["twin"]["values"]["equal"] and data["classes"] == len(whole().program.classes)


MACHINES = ClusterSpec(
    tuple(
        NodeSpec(name, (DeviceSpec("cpu"),) * 4, LinkSpec(5e10, 1e-6), LinkSpec(1e9, 1e-5))
        for name in ("a", "b", "c")
    )
)


def test_a_program_for_a_cluster_has_a_twin_for_it(tmp_path: Path) -> None:
    """Ways of communication are chosen by the links of the places that the twin's ranks have in the whole."""
    stages = (S((0, 1, 2), (0, 1)), S((3, 4, 5), (1, 2)))
    later = tuple(replace(stage, devices=tuple(one + 6 for one in stage.devices)) for stage in stages)
    strategy = Strategy((P(stages, (2, 1)), P(later, (2, 1))))
    made = hspmd.compile(load_model("llama-tiny", SIZES), strategy=strategy, cluster=MACHINES)
    made.save(tmp_path / "made", weights=False)
    artifact = load(tmp_path / "made")
    assert verify_twin(artifact).ranks == (12, 12)
    with pytest.raises(VerifyError, match="the twin is another program"):
        verify_twin(replace(artifact, cluster=None))
    content = (tmp_path / "made/cluster.json").read_text().replace("1000000000.0", "2000000000.0")
    (tmp_path / "made/cluster.json").write_text(content)
    with pytest.raises(ArtifactError, match=r"cluster\.json was changed"):
        load(tmp_path / "made")


def test_a_cluster_that_is_none_is_told() -> None:
    with pytest.raises(ClusterError, match="nodes"):
        verify_twin(replace(whole(), cluster={"version": 1}))


def changed_row(program: Program) -> Program:
    """A literal that no size explains."""

    def change(row: LocalRow) -> LocalRow:
        return replace(row, args=(row.args[0], 3.25)) if row.op == "aten.pow.Tensor_Scalar" else row

    name, shared = next(iter(program.classes.items()))
    segments = [replace(part, rows=[change(row) for row in part.rows]) for part in shared.segments]
    return replace(program, classes=program.classes | {name: replace(shared, segments=segments)})


def changed_step(program: Program) -> Program:
    """Another combination, on all ranks of a pipeline that is alone of its kind."""
    ranks = [
        replace(own, comms=[replace(step, combine=Combine.MAX) for step in own.comms])
        if own.pipeline == 3
        else own
        for own in program.ranks
    ]
    return replace(program, ranks=ranks)


def changed_copy(program: Program) -> Program:
    """A pipeline that the twin leaves out asks another peer."""
    ranks = list(program.ranks)
    own = next(own for own in ranks if own.pipeline == 2 and own.stage == 1)
    steps = [
        replace(step, recvs=tuple(replace(piece, peer=step.group[1]) for piece in step.recvs))
        for step in own.transfers
    ]
    ranks[own.rank] = replace(own, transfers=steps)
    return replace(program, ranks=ranks)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (changed_row, "aten.pow.Tensor_Scalar(Value("),
        (changed_step, "comms 0 differs: all_reduce"),
        (changed_copy, "is not as rank"),
    ],
)
def test_what_is_not_the_twin_is_named(change: Callable[[Program], Program], text: str) -> None:
    broken = replace(whole(), program=change(whole().program))
    with pytest.raises(VerifyError) as error:
        verify_twin(broken)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("strategy", "what"),
    [
        (replace(STRATEGY, overrides=(Override("*mlp*", duplicate=True),)), "overrides"),
        (Strategy((P((S((0, 1), (0, 2), (2, 1)),), (2,)),)), "shares"),
    ],
)
def test_strategies_without_a_twin_are_refused(strategy: Strategy, what: str) -> None:
    artifact = hspmd.compile(load_model("llama-tiny", SIZES), strategy=strategy).artifact
    with pytest.raises(ArtifactError, match="no twin under this strategy") as error:
        verify_twin(artifact)
    assert what in str(error.value)


def test_models_without_sizes_have_no_twin() -> None:
    artifact = hspmd.compile(load_model("mlp"), strategy=Strategy((P((S((0, 1), (0, 4)),), (2,)),))).artifact
    with pytest.raises(ArtifactError, match="no twin of the model mlp"):
        verify_twin(artifact)


def test_reduced_sizes_keep_the_order_of_all_boundaries() -> None:
    for size in range(40, 400, 7):
        small = reduced(size, 24, 2)
        assert small % 24 == size % 24 and small <= size
        assert split_pairs(size, small, (1, 2, 3, 4, 8))
    with pytest.raises(VerifyError, match="order"):
        split_pairs(100, 2, (3, 4))


def test_numbers_are_the_same_product_of_sizes_or_differ() -> None:
    sizes = SizeMap([(6656, 256), (104, 4), (4096, 16), (4097, 17)])
    assert sizes.same(6656 * 4096 * 3, 256 * 16 * 3) and sizes.same((2, 4097, -1), (2, 17, -1))
    assert sizes.same(1 / math.sqrt(104), 0.5) and sizes.same(1e-6, 1e-6) and sizes.same(-6656, -256)
    assert not sizes.same(6656, 255) and not sizes.same(7, 8) and not sizes.same(1, 1.0)
    assert not sizes.same(1e-6, 1e-5) and not sizes.same(6656, -256) and not sizes.same(True, 1)


@pytest.mark.slow
def test_a_twin_has_the_buckets_of_the_whole() -> None:
    """Sizes decide which gradients are summed together, and those of a twin are others."""
    sizes = {"layers": "2", "heads": "4", "hidden": "256", "seq": "32", "vocab": "512", "ffn": "512"}
    alike = [{"stages": [{"devices": [rank], "layers": 2}], "micro_batches": [1]} for rank in range(3)]
    program = hspmd.compile(
        load_model("llama-tiny", {**sizes, "kv_heads": "4"}), strategy={"pipelines": alike}
    )
    waves = {bucket.wave for bucket in program.artifact.program.ranks[0].grad_buckets}
    assert len(waves - {-1}) > 2
    assert verify_twin(program.artifact).ranks == (3, 2)
