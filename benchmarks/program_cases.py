"""What same_programs.py compiles: models of this repository with strategies, by names that stay."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from compile_overhead import homogeneous  # noqa: E402

from hspmd_compiler.coverage.matrix import trace_model  # noqa: E402
from hspmd_compiler.coverage.model import CoveredModel  # noqa: E402
from hspmd_compiler.coverage.registry import MODELS  # noqa: E402
from hspmd_compiler.coverage.strategies import COLUMNS, Column, strategy_of  # noqa: E402
from hspmd_compiler.ir.graph import LogicalGraph  # noqa: E402
from hspmd_compiler.models.builtin_models import BUILTIN  # noqa: E402
from hspmd_compiler.strategy.strategy import Strategy  # noqa: E402
from tests.strategy.published import Published, Size, published, traced, twin  # noqa: E402
from tests.training.test_memory_savers import drawn, graph_of  # noqa: E402

REFERENCE = ROOT.parent / "shared" / "reference"
DRAWN = 200
LARGE = ("hetero_cluster/", "hexiscale/")
"""Published strategies that are also compiled for the published sizes."""
RANKS = (8, 64, 1024)


class Case(NamedTuple):
    """make: the traced graph and the strategy; nothing is traced before it is called."""

    name: str
    make: Callable[[], tuple[LogicalGraph, Strategy]]


def matrix() -> Iterator[Case]:
    """All cells of `hspmd coverage`."""
    for model in MODELS:
        if any(find_spec(package) is None for package in model.needs):
            _skip(f"{model.name} needs {', '.join(model.needs)}")
            continue
        for column in COLUMNS:
            if column.name not in model.left_out:
                yield Case(f"matrix/{model.name}/{column.name}", partial(_cell, model, column))


def twins() -> Iterator[Case]:
    """The reference strategies on small twins of their models, in which the same stages and degrees meet."""
    held = sorted(((one, *twin(one)) for one in _known()), key=lambda each: _order(each[0], *each[1:]))
    for one, size, strategy in held:
        yield Case(f"published/{one.name}", partial(_sized, size, strategy))


def large() -> Iterator[Case]:
    """Models of 30B to 70B in their own size, and equal ranks up to 1,024."""
    for one in sorted(_known(), key=lambda one: _order(one, one.size, one.expanded.strategy)):
        if one.name.startswith(LARGE):
            yield Case(f"large/{one.name}", partial(_sized, one.size, one.expanded.strategy))
    size = BUILTIN["llama-32b"]
    for ranks in RANKS:
        strategy = homogeneous(ranks, size.layers)  # type: ignore[union-attr]
        yield Case(f"large/{ranks} equal ranks", partial(_sized, size, strategy))  # type: ignore[arg-type]


def random_ones() -> Iterator[Case]:
    """Strategies drawn by number: ZeRO, recomputation, uneven and empty shares, parameters split by hand."""
    for number in range(DRAWN):
        yield Case(f"drawn/{number:03}", partial(_drawn, number))


GROUPS = {"matrix": matrix, "published": twins, "drawn": random_ones, "large": large}


def _cell(model: CoveredModel, column: Column) -> tuple[LogicalGraph, Strategy]:
    graph = _covered(model.name)
    return graph, strategy_of(column, len(graph.layers), whole_statistics=model.whole_statistics)


@lru_cache(maxsize=1)
def _covered(name: str) -> LogicalGraph:
    return trace_model(next(model for model in MODELS if model.name == name)).graph


def _known() -> list[Published]:
    """Those that `compile` takes."""
    if not REFERENCE.is_dir():
        _skip(f"published strategies, {REFERENCE} is absent")
        return []
    return [one for one in published(REFERENCE) if not one.expanded.strategy.context]


def _order(one: Published, size: Size, strategy: Strategy) -> tuple[str, int, str]:
    """Those of one traced graph follow each other."""
    return repr(size), strategy.global_batch, one.name


def _sized(size: Size, strategy: Strategy) -> tuple[LogicalGraph, Strategy]:
    return traced(size, strategy.global_batch), strategy


def _drawn(number: int) -> tuple[LogicalGraph, Strategy]:
    case = drawn(number, quick=False)
    return graph_of(case.subject, case.precision), case.strategy


def _skip(what: str) -> None:
    print(f"skipped: {what}", file=sys.stderr)
