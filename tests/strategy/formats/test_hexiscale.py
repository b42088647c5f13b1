"""HexiScale's configurations: its README's, its two programs' padding, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hspmd_compiler.errors import StrategyError
from hspmd_compiler.strategy.formats.expanded import Choices, DeviceSlot, Expanded
from hspmd_compiler.strategy.formats.hexiscale import chunk_sizes, expand_hexiscale, fit, read_configuration
from hspmd_compiler.strategy.strategy import PipelineSpec, ScheduleKind, StageSpec, Strategy

README = '--hetero_configs "[[1,2,1]]" --layer_partitions "[[1,2,1]]" --devices_id "[[[0],[0,0],[0]]]"'
TWO = '--hetero_configs "[[4,2],[2]]" --layer_partitions "[[2,2],[4]]"'


def expand(text: str, choices: Choices = Choices()) -> Expanded:  # noqa: B008
    return expand_hexiscale(read_configuration(text, "run.sh"), choices, "run.sh")


def sizes(text: str) -> list[tuple[int, ...]]:
    return [pipeline.micro_batches for pipeline in expand(text).strategy.pipelines]


def test_the_example_of_the_readme() -> None:
    expanded = expand(f"python train.py {README} --layer-num 4")
    stages = (StageSpec((0,), (0, 1)), StageSpec((1, 2), (1, 3)), StageSpec((3,), (3, 4)))
    assert expanded.strategy == Strategy((PipelineSpec(stages, (1, 1, 1)),))
    assert expanded.places == tuple(DeviceSlot(rank, 0, rank) for rank in range(4))


def test_the_published_file(reference: Path) -> None:
    content = json.loads((reference / "planners" / "hexiscale" / "all_hetero_configs.json").read_text())
    expanded = expand_hexiscale(content, Choices())
    assert [pipeline.devices for pipeline in expanded.strategy.pipelines] == [(0, 1, 2, 3, 4, 5), (6, 7)]
    assert [place.local for place in expanded.places] == list(range(8))


def test_machines_count_their_ranks() -> None:
    text = f'{TWO} --devices_id "[[[3,3,3,3],[1,3]],[[1,3]]]"'
    places = expand(text).places
    assert [(place.machine, place.local) for place in places if place.machine == 1] == [(1, 0), (1, 1)]
    assert [place.device for place in places if place.machine == 3] == [0, 1, 2, 3, 5, 7]


def test_layouts_name_ranks_sorted_in_each_stage() -> None:
    text = f'{TWO} --pp_layouts "[[[7,1,3,5],[0,2]],[[6,4]]]"'
    stages = [stage.devices for pipeline in expand(text).strategy.pipelines for stage in pipeline.stages]
    assert stages == [(1, 3, 5, 7), (0, 2), (4, 6)]


def test_the_trainer_pads_and_does_not_cut() -> None:
    assert sizes(f"{TWO} --global_bsz_size 6 --chunks 3") == [(2, 2, 2), (2, 2, 2)]
    assert sizes(f"{TWO} --global_bsz_size 6 4 --chunks 3 1") == [(2, 2, 2), (4,)]
    assert fit([6], [3], 3, cuts=False) == ([6, 6, 6], [3, 3, 3])
    assert fit([6, 4, 2], [3, 3, 3], 2, cuts=False) == ([6, 4, 2], [3, 3, 3])


def test_the_launcher_pads_and_cuts_by_the_batch_list() -> None:
    assert sizes(f"{TWO} --global_batch_size 6 4 9 --micro_batch_num 3 2 9") == [(2, 2, 2), (2, 2)]
    assert fit([6], [3, 2], 3, cuts=True) == ([6, 6, 6], [3, 2, 2, 2])
    assert fit([6, 4, 9], [3], 2, cuts=True) == ([6, 4], [3])


def test_a_batch_is_cut_as_tensors_are() -> None:
    """The first pieces are the largest; there may be fewer than asked for, and the last may be smaller."""
    assert list(chunk_sizes(6, 3)) == [2, 2, 2]
    assert list(chunk_sizes(5, 2)) == [3, 2]
    assert list(chunk_sizes(5, 4)) == [2, 2, 1]
    assert list(chunk_sizes(2, 4)) == [1, 1]


def test_what_the_flags_lack() -> None:
    assert sizes(f"{TWO} --chunks 3") == [(1, 1, 1), (1, 1, 1)]
    assert [len(one.micro_batches) for one in expand(TWO).strategy.pipelines] == [2, 1]
    own = expand(TWO, Choices(micro_batch_size=4, micro_batches=3)).strategy
    assert [one.micro_batches for one in own.pipelines] == [(4, 4, 4), (4, 4, 4)]


def test_accumulation_schedule_and_data_parallelism() -> None:
    expanded = expand(
        f"{TWO} --accum-iter 2 --run-iter 4 --pipeline-type Gpipe --default_dp_type zero2 --lr 1"
    )
    assert expanded.strategy.accumulation == 2
    assert expanded.strategy.schedule is ScheduleKind.GPIPE
    assert expanded.zero
    assert "lr says nothing about the strategy" in expanded.notes
    assert expand(TWO).strategy.schedule is ScheduleKind.ONE_F_ONE_B


BAD = {
    "shapes": '--hetero_configs "[[4,2],[2]]" --layer_partitions "[[2,3],[4,1],[1]]"',
    "types": '--hetero_configs "[[4,0],2]" --layer_partitions hello',
    "missing": "--hetero-configs",
    "layers": f"{TWO} --total-layer-num 5",
    "trainer_too_long": f"{TWO} --global_bsz_size 6 4 9 --chunks 2",
    "launcher_other_length": f"{TWO} --global_batch_size 6 --micro_batch_num 2 4 4",
    "mixed_names": f"{TWO} --global_bsz_size 6 --micro_batch_num 2",
    "layouts": f'{TWO} --pp_layouts "[[[0,1,2,2],[3]],[[4,9]]]" --devices_id "[[[0,0],[0,0]],[[0,0]]]"',
    "layouts_ranks": f'{TWO} --pp_layouts "[[[0,1,2,2],[3,5]],[[4,9]]]"',
    "values": f"{TWO} --accum-iter 3 --run-iter 2 --pipeline-type zigzag --layers_partitions 3 --chunks x",
    "path": "--all_hetero_configs_path configs.json " + TWO,
    "never_executed": '--hetero_configs "$(cat configs)" --layer_partitions "`pwd`" --lr $LR',
    "open_quote": '--hetero_configs "[[1]]',
}


@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_listed(name: str, expect: Callable[[str, str], None]) -> None:
    with pytest.raises(StrategyError) as caught:
        expand(BAD[name])
    expect(f"strategy_formats/hexiscale_{name}", str(caught.value))
