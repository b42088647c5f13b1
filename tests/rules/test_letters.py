"""Rules written as letters: split equals whole, trained equals eager, and what is refused."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.errors import DeduceError, OptionError
from hspmd_compiler.ir.graph import Row
from hspmd_compiler.layout.layout import whole
from hspmd_compiler.rules.op_rule import OP_RULES
from hspmd_compiler.rules.rule_book import RULES
from hspmd_compiler.rules.rules import Result, RuleContext
from hspmd_compiler.rules.unknown_operators import compute_whole
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.verify.rules.split_operands import Operand, StageMesh
from hspmd_compiler.verify.rules.split_operator import OperandSketch, check

from ..training.equal_to_eager import Case as TrainingCase
from .rule_cases import FULL, MATRIX, Case, F, Take, normal, picked
from .test_rules_brute_force import WAYS, try_one

ROW = Operand((F,), normal, sample=None)
PAIR = replace(ROW, shape=(5, F))
RUNNING = "aten.logcumsumexp.default"
CDIST = "aten._cdist_forward.default"
RULED: list[tuple[str, str, dict[str, str], list[Operand | float | None]]] = [
    ("aten.mv.default", "m k, k -> m", {"sum": "k"}, [MATRIX, ROW]),
    ("aten.dot.default", "k, k -> ", {"sum": "k"}, [ROW, ROW]),
    (RUNNING, "... d -> ... d", {"whole": "d"}, [FULL, 2]),
    ("aten.cummax.default", "a b c -> a b c, a b c", {"whole": "b"}, [FULL, 1]),
    (CDIST, "... p d, ... r d -> ... p r", {"whole": "d"}, [FULL, PAIR, 2.0, None]),
]


@pytest.fixture(autouse=True)
def forget(own_rules: None) -> None:
    """Operators of a test have no rule of the package."""
    for op, *_ in RULED:
        RULES.pop(op, None)
        OP_RULES.pop(op, None)


@pytest.mark.parametrize(("op", "letters", "more", "arguments"), RULED, ids=[op for op, *_ in RULED])
def test_split_equals_whole(
    op: str, letters: str, more: dict[str, str], arguments: list[Operand | float | None]
) -> None:
    hspmd.rule(op, letters, **more)

    def call(s: OperandSketch, take: Take) -> None:
        args = tuple(take(item) if isinstance(item, Operand) else item for item in arguments)
        if "," in letters.partition("->")[2]:
            picked(s, op, args, 2)
        else:
            s.call(op, args)

    draws = random.Random(1)
    for _ in range(24):
        try_one(Case(op, call), draws.randrange(2**32), draws.choice(WAYS))


class Running(nn.Module):
    """Layers with an operator between them that has a rule of letters only."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(F, F) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh().logcumsumexp(1)
        return nn.functional.mse_loss(x, y)


def test_a_split_batch_compiles_with_a_rule() -> None:
    """Its backward flips, and runs the same operator again."""
    hspmd.rule(torch.ops.aten.logcumsumexp.default, "... d -> ... d", whole="d")
    batch = {name: torch.randn(4, F) for name in ("x", "y")}
    stages = (StageSpec((0, 1), (0, 2)),)
    pipelines = (PipelineSpec(stages, (2, 1)), PipelineSpec((StageSpec((2,), (0, 2)),), (1,)))
    TrainingCase.of(Running, batch).check(Strategy(pipelines))


@pytest.mark.parametrize(
    ("letters", "more", "said"),
    [
        ("m k, k n", {}, "has no ->"),
        ("m k, k n -> m n", {}, "is in no result"),
        ("m k, k n, n -> m n", {"sum": "k"}, "is summed: every operand has it"),
        ("m m -> m", {}, "names a dim twice"),
        ("m ... -> m", {}, "..."),
        ("m -> m", {"whole": "q"}, "is no letter of the rule"),
        ("m, m -> m", {"linear": "one"}, "'one' is for one operand"),
        ("m-1 -> m-1", {}, "is not a letter or word"),
        ("3|m -> m", {}, "3|m"),
    ],
)
def test_rules_that_are_not_understood(letters: str, more: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        hspmd.rule("aten.mv.default", letters, **more)
    assert said in caught.value.text()
    assert "aten.mv.default" not in RULES


def test_one_rule_for_an_operator(expect: Callable[[str, str], None]) -> None:
    hspmd.rule("aten.mv.default", "m k, k -> m", sum="k")
    hspmd.rule("aten.mv.default", "m k, k -> m", sum="k")
    for op, letters in (("aten.mm.default", "m k, k n -> m n"), ("aten.mv.default", "m k, k -> m")):
        with pytest.raises(OptionError, match="has a rule already") as caught:
            hspmd.rule(op, letters, whole="k")
        expect(f"letters/other_rule_for_{op}", caught.value.text())
    hspmd.rule("aten.mv.default", "m k, k -> m", whole="k", override=True)
    assert OP_RULES["aten.mv.default"].whole == {"k"}


def test_no_rule_for_what_no_program_may_call() -> None:
    with pytest.raises(OptionError, match=r"no program may call aten\.from_file\.default"):
        hspmd.rule("aten.from_file.default", "-> m")
    with pytest.raises(OptionError, match="own::twice"):
        hspmd.rule("own::twice", "m -> m")


def test_a_rule_along_what_the_operator_does_not_take() -> None:
    with pytest.raises(OptionError, match=r"aten\.cumsum\.default has no argument dims"):
        hspmd.rule("aten.cumsum.default", "... -> ...", along="dims", override=True)
    with pytest.raises(OptionError, match="linear='twice' is not known"):
        hspmd.rule("aten.cumsum.default", "... -> ...", linear="twice", override=True)


def test_one_function_for_an_operator() -> None:
    def made() -> Callable[..., Any]:
        def own(ctx: RuleContext, row: Row) -> Result:
            return compute_whole(ctx, row)

        return own

    def other(ctx: RuleContext, row: Row) -> Result:
        raise AssertionError

    first = hspmd.rule_for("aten.mv.default")(made())
    hspmd.rule_for("aten.mv.default")(made())
    assert RULES["aten.mv.default"] is first
    with pytest.raises(OptionError, match="has a rule already"):
        hspmd.rule_for("aten.mv.default", "aten.mm.default")(other)
    hspmd.rule_for("aten.mv.default", "aten.mm.default", override=True)(other)
    assert RULES["aten.mv.default"] is RULES["aten.mm.default"] is other


def test_a_rule_of_the_user_is_there_first() -> None:
    """Rules of the package are loaded at the first registration, not by the compile behind it."""
    code = "\n".join(
        (
            "import hspmd_compiler as hspmd",
            "hspmd.rule('aten.mv.default', 'm k, k -> m', sum='k')",
            "hspmd.rule('aten.dot.default', 'k, k -> ', whole='k', override=True)",
            "from hspmd_compiler.rules.rules import RULES",
            "assert 'aten.mm.default' in RULES",
        )
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("op", "letters", "operand", "arguments"),
    [
        ("aten.amax.default", "... d -> ... d", FULL, ((-1,), True)),
        ("aten.unfold.default", "d -> d w", ROW, (0, 2, 2)),
    ],
    ids=["one element is left", "windows"],
)
def test_a_letter_that_is_shorter_in_the_result(
    op: str, letters: str, operand: Operand, arguments: tuple[object, ...]
) -> None:
    """Cut, it would be worked on piece by piece."""
    hspmd.rule(op, letters, override=True)
    sketch = OperandSketch(StageMesh(2))
    sketch.call(op, (sketch.operand(operand, whole(operand.shape)), *arguments))
    with pytest.raises(DeduceError, match="other tensors than its rule names"):
        check(sketch)


def test_a_call_that_the_letters_do_not_fit() -> None:
    hspmd.rule("aten.mv.default", "m k -> m", whole="k")
    from hspmd_compiler.verify.rules.split_operands import random_layout
    from hspmd_compiler.verify.rules.split_operator import OperandSketch

    mesh = StageMesh(2)
    sketch = OperandSketch(mesh)
    refs = [
        sketch.operand(item, random_layout(random.Random(0), item, mesh, False)) for item in (MATRIX, ROW)
    ]
    sketch.call("aten.mv.default", refs)
    with pytest.raises(DeduceError, match="other tensors than its rule names"):
        check(sketch)
