"""Markers of any kind change no number: drawn layouts of several dims, addends kept, in any order."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings

from hspmd_compiler.artifact.manifest import describe
from hspmd_compiler.artifact.store import Artifact
from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.compiler import lower_graph
from hspmd_compiler.errors import AnnotationError
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.strategy.form import form_of
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.verify.rows import compare_rows

from ..training.equal_to_eager import Case
from .marked_models import STRATEGIES, Marks, programs, traced, with_marks

QUIET = list(HealthCheck)
NO_SUM = "is no pending sum here"


def check(marks: Marks, strategy: Strategy) -> Case:
    """Loss and gradients are eager's."""
    case = with_marks(traced(), marks)
    try:
        case.check(strategy)
    except AnnotationError as error:
        assume(NO_SUM not in error.what)
        raise
    return case


def check_rows(case: Case, strategy: Strategy) -> None:
    """Every value, put together by its layout, is that of one device."""
    made = lower_graph(case.graph, strategy, DeviceKind.CPU)
    manifest = describe({}, {}, OptimizerConfig(), made.program, form_of(strategy))
    artifact = Artifact(manifest, made.program, None, None, layouts=made.layouts.to_json())
    compare_rows(artifact, case.graph, case.state, case.batch)


@settings(max_examples=6, deadline=None, suppress_health_check=QUIET, derandomize=True)
@given(programs(STRATEGIES[:4]))
def test_markers_change_no_number(drawn: tuple[Marks, Strategy]) -> None:
    check(*drawn)


FIXED: dict[str, Marks] = {
    "two dims": {"mixed": "[0,1,2,3]  <S2(3,5) S1x2>", "gelu": "[3,1,2,0]  <S1(5,0) S2x2>"},
    "copies": {"down": "[0,1,2,3]  <Dx4>", "attention": "[0,1,2,3]  <Dx2 S1(0:1,0:5)>"},
    "samples": {"scores": "[0,1,2,3]  <S2(1,4) S0x2>"},
    "addends": {"attention": "[0,1,2,3]  <Dx2 Px2>", "down": "[0,2,1,3]  <S1(0:3,2:5) Px2>"},
}


@pytest.mark.parametrize("name", FIXED)
def test_every_value_is_right(name: str) -> None:
    case = check(FIXED[name], STRATEGIES[1])
    check_rows(case, STRATEGIES[1])


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=QUIET, database=None)
@given(programs())
def test_many_markers_change_no_number(drawn: tuple[Marks, Strategy]) -> None:
    check_rows(check(*drawn), drawn[1])
