"""The examples in docs/strategy.md are strategies that are read, and mean what the page says."""

from __future__ import annotations

import re
from pathlib import Path

from hspmd_compiler.base.pipeline_schedule import build_schedule
from hspmd_compiler.strategy.formats.expanded import Format
from hspmd_compiler.strategy.formats.read import read_text
from hspmd_compiler.strategy.schedules.schedule_time import grid
from hspmd_compiler.strategy.strategy import ScheduleKind

PAGE = (Path(__file__).parents[2] / "docs" / "strategy.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_every_example_is_a_strategy() -> None:
    first, overrides, laid_out, holder, remade = (read_text(text) for text in blocks("json"))
    yaml, shared, by_hand, ring = (read_text(text) for text in blocks("yaml"))
    (lines,) = (read_text(text) for text in blocks("sh"))
    assert first == yaml
    assert shared.global_batch == 8
    assert [shared.rows(pipeline) for pipeline in (1, 2)] == [[(0, 2), (2, 4)], [(4, 8)]]
    assert shared.context[0].lengths == (96, 32)
    assert by_hand.schedule_of(0).num_micro_batches == 3
    assert ring.pipelines[0].lanes == ((0, 2), (1, 3))
    assert first.global_batch == 15
    assert first.rows(1) == [(10, 14), (14, 15)]
    assert overrides.override_for("model.layers.1.mlp.up_proj.weight") == overrides.overrides[1]
    assert holder.zero_weights() == {0: 1, 1: 0, 2: 5}
    assert laid_out.layout_at("layers.3.linear2") == 2
    assert [len(pipeline.recompute) for pipeline in remade.pipelines] == [2, 1]
    assert lines.devices == (0, 1, 2, 4, 5)


def test_the_grid_on_the_page_is_drawn() -> None:
    assert blocks("text") == [grid(build_schedule(ScheduleKind.ONE_F_ONE_B, 3, 4))]


def test_every_schedule_and_format_is_on_the_page() -> None:
    missing = [kind.value for kind in (*ScheduleKind, *Format) if f"`{kind.value}`" not in PAGE]
    assert not missing
