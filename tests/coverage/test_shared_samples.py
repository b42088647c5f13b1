"""Every model of the matrix, unmodified, its samples shared by the ranks of a stage: no activation moves."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from torch import Generator

from hspmd_compiler.coverage.model import SAMPLES, CoveredModel
from hspmd_compiler.coverage.registry import MODELS
from hspmd_compiler.ir.anchor_rows import anchors_of
from hspmd_compiler.ir.graph import Phase
from hspmd_compiler.passes.layout_wishes import bind_layouts
from hspmd_compiler.strategy.strategy import LayoutWish, Override, PipelineSpec, StageSpec, Strategy

from ..quick import quick_are
from ..training.equal_to_eager import Case
from ..training.sampled_models import deduced, moved

LABELS = "labels", "y"
QUICK = "MLP", "GPT-2"
NAMED = {model.name: model for model in MODELS}


def strategy_of(case: Case, model: CoveredModel) -> Strategy:
    """Two ranks, all parameters whole, micro-batches of two samples and of one; of one where samples meet."""
    stage = StageSpec((0, 1), (0, max(1, len(case.graph.layers))))
    sizes = (SAMPLES,) if model.whole_statistics else (SAMPLES - 1, 1)
    names = dict.fromkeys(place.name for place in anchors_of(case.graph))
    return Strategy(
        (PipelineSpec((stage,), sizes),),
        overrides=(Override("**", duplicate=True),),
        layouts=tuple(LayoutWish(name, "S0") for name in names),
    )


@pytest.mark.parametrize("name", quick_are(NAMED, QUICK))
def test_samples_stay_shared(name: str) -> None:
    model = NAMED[name]
    for package in model.needs:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    batch = model.batch(Generator().manual_seed(1))
    case = Case.of(model.build, batch, anchors=tuple(key for key in batch if key not in LABELS))
    strategy = strategy_of(case, model)
    case.check(strategy)
    bound = Case(bind_layouts(case.graph, strategy), case.state, case.batch, case.eager)
    (graph,) = deduced(bound, strategy)
    forward = [row.out.layout.shape for row in moved(graph) if row.phase is Phase.FORWARD]
    assert all(len(shape) == 1 for shape in forward), "nothing but statistics of batch norms"
    assert bool(forward) == model.whole_statistics
