"""Models that drop train exactly like eager with the same masks, however they are split."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hspmd_compiler as hspmd
from hspmd_compiler.errors import VerifyError
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.ir.own_names import RANDOM_MASK
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.program.kernels import counter_random
from hspmd_compiler.program.kernels.counter_random import Stream
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import Recompute, RecomputeKind, Strategy
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.trace.tracer import trace
from hspmd_compiler.verify.eager import eager_step

from ..quick import quick_are
from ..training.equal_to_eager import Case
from ..training.training_cases import HEADS, STRATEGIES, Batch, gpt2, tokens

QUICK = {"gpt2": ("empty",), "encoder": ("mixed",)}
SGD = OptimizerConfig(name=OptimizerName.SGD, lr=0.1)


class Encoder(nn.Module):
    """torch's own encoder layers, tokens first: samples lie along dim 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(12, HEADS, 24, dropout=0.2) for _ in range(2))
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x).mean(0), y)


def sequences() -> Batch:
    generator = torch.Generator().manual_seed(0)
    return {
        "x": torch.randn(10, 4, 12, generator=generator),
        "y": torch.randint(0, 5, (10,), generator=generator),
    }


@cache
def case_of(name: str) -> Case:
    """Traced, with an eager step, once."""
    return (
        Case.of(lambda: gpt2(dropout=0.1), tokens(0))
        if name == "gpt2"
        else Case.of(lambda: Encoder().train(), sequences())
    )


def operators(graph: LogicalGraph) -> list[int]:
    """Numbers of the random operators, in order."""
    return [int(str(row.args[1])) for row in graph.rows if row.op == RANDOM_MASK]


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        pytest.param(model, strategy, marks=() if strategy in quick else pytest.mark.slow)
        for model, quick in QUICK.items()
        for strategy in STRATEGIES
    ],
)
def test_every_strategy_drops_the_same(model: str, strategy: str) -> None:
    case_of(model).check(STRATEGIES[strategy])


@pytest.mark.parametrize("kind", [RecomputeKind.FULL, RecomputeKind.SELECTIVE])
def test_what_is_computed_again_drops_the_same(kind: RecomputeKind) -> None:
    """Backward draws the masks of recomputed layers anew: nothing of them is kept."""
    pipeline = P((S((0, 1), (0, 2)),), (6, 4), recompute=(Recompute((0, 2), kind),))
    program = case_of("encoder").check(Strategy((pipeline,)))
    forward, backward = program.classes["c0"].segments[:2]
    drawn = [[row.op for row in part.rows].count("hspmd.random_mask") for part in (forward, backward)]
    assert drawn == [8, 8]


def test_every_operator_has_a_number() -> None:
    """Three in each of two blocks, attention among them, and one of the embeddings."""
    assert operators(case_of("gpt2").graph) == list(range(7))


def test_another_mask_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison sees a mask that is drawn by local positions."""
    case = case_of("encoder")
    own = counter_random._indexes

    def local(part: counter_random.FactorPart, first: int, device: str) -> Tensor:
        return own(part, 0, device)

    monkeypatch.setattr(counter_random, "_indexes", local)
    with pytest.raises(VerifyError):
        case.check(STRATEGIES["micro"])


def test_a_shared_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators that drop alike are seen: no two masks of a block are one."""
    case = case_of("encoder")
    own = Stream.of
    monkeypatch.setattr(Stream, "of", staticmethod(lambda seed, number, step: own(seed, 0, step)))
    with pytest.raises(VerifyError):
        case.check(STRATEGIES["one"])


class Forms(nn.Module):
    """A block's output, dropped in one of the ways that torch offers."""

    def __init__(self, drop: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(2))
        self.drop = drop

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + self.drop(layer(x).view(-1, 3, 2, 2)).reshape(-1, 12)
        return functional.cross_entropy(x, y)


def by_channel(x: Tensor) -> Tensor:
    return functional.dropout1d(x.flatten(2), 0.4)


def unused(x: Tensor) -> Tensor:
    """Eager draws for what nobody reads, too."""
    functional.dropout(x.detach(), 0.5)
    return functional.dropout(x, 0.3)


def weights(x: Tensor) -> Tensor:
    """A mask without samples is the same for all of them."""
    return x * functional.dropout(torch.ones(3, 2, 2), 0.4)


def attention(x: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(x, x, x, dropout_p=0.3, is_causal=True)


def own_mask(x: Tensor) -> Tensor:
    return x * torch.empty_like(x).bernoulli_(0.7)


FORMS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "dropout": (lambda x: functional.dropout(x, 0.3), 2),
    "in place": (lambda x: functional.dropout(x.clone(), 0.3, inplace=True), 2),
    "1d": (by_channel, 2),
    "2d": (lambda x: functional.dropout2d(x, 0.4), 2),
    "alpha": (lambda x: functional.alpha_dropout(x, 0.3, training=True), 2),
    "feature alpha": (lambda x: functional.feature_alpha_dropout(x, 0.3, training=True), 2),
    "attention": (attention, 2),
    "own mask": (own_mask, 2),
    "weights": (weights, 2),
    "unused": (unused, 2),
    "nothing": (lambda x: functional.dropout(x, 0.0), 0),
    "everything": (lambda x: functional.dropout(x, 1.0), 0),
    "native": (lambda x: torch.native_dropout(x, 0.3, True)[0], 2),
}
QUICK_FORMS = ("in place", "1d", "alpha", "attention", "own mask", "weights", "everything")
"""The others end in the same random mask."""


@pytest.mark.parametrize("name", quick_are(FORMS, QUICK_FORMS))
def test_every_form(name: str) -> None:
    drop, count = FORMS[name]
    generator = torch.Generator().manual_seed(0)
    batch = {
        "x": torch.randn(6, 12, generator=generator),
        "y": torch.randint(0, 12, (6,), generator=generator),
    }
    case = Case.of(lambda: Forms(drop), batch)
    assert len(set(operators(case.graph))) == count
    first, second = S((0, 1, 2), (0, 1)), S((3, 4), (1, 2))
    case.check(Strategy((P((first, second), (3, 1)), P((S((5,), (0, 2)),), (2,)))))


def test_without_training_nothing_is_dropped() -> None:
    graph = trace(Encoder().eval(), sequences(), batch=10)
    assert operators(graph) == []


def made() -> tuple[nn.Module, Batch]:
    return Forms(FORMS["dropout"][0]), {"x": torch.zeros(2, 12), "y": torch.zeros(2, dtype=torch.int64)}


def batch_of(step: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    return {
        "x": torch.randn(6, 12, generator=generator),
        "y": torch.randint(0, 12, (6,), generator=generator),
    }


ONE = Strategy((P((S((0,), (0, 2)),), (3, 2, 1)),))


def test_an_artifact_is_verified() -> None:
    """Five steps beside eager, each with masks of its own, and every value beside the single-device graph."""
    stages = (S((0, 1), (0, 1)), S((2,), (1, 2)))
    strategy = Strategy((P(stages, (2, 2)), P((S((3,), (0, 2)),), (1,))))
    report = hspmd.compile(made, strategy=strategy, optimizer=SGD).verify(values=True, rows=True)
    assert report.values is not None and len(report.values.steps) == 5
    assert report.rows is not None and RANDOM_MASK not in report.rows.left_out


@contextmanager
def engine_of(artifact: Path) -> Iterator[Engine]:
    """The one rank of an artifact; its process group ends with the block."""
    engine = hspmd.load(artifact)
    try:
        yield engine
    finally:
        engine.transport.close()


def test_a_run_resumes_with_its_masks(tmp_path: Path) -> None:
    """Steps have masks of their own; weights and the optimizer's state continue where they were."""
    hspmd.compile(made, strategy=ONE, optimizer=SGD).save(tmp_path / "one")
    model = made()[0]
    update = torch.optim.SGD(model.parameters(), lr=SGD.lr)
    with engine_of(tmp_path / "one") as engine:
        model.load_state_dict(engine.state_dict())
        for step in range(2):
            wanted = eager_step(model, batch_of(step), widen=False, step=step).loss
            assert engine.step(batch_of(step)) == pytest.approx(wanted, rel=1e-5)
            update.step()
        weights, state = engine.state_dict(), engine.optimizer_state_dict()
    wanted = eager_step(model, batch_of(2), widen=False, step=2).loss
    with engine_of(tmp_path / "one") as resumed:
        resumed.load_state_dict(weights)
        assert resumed.step(batch_of(2)) != pytest.approx(wanted, rel=1e-3)
        resumed.load_state_dict(weights)
        resumed.load_optimizer_state_dict(state, steps=2)
        assert resumed.step(batch_of(2)) == pytest.approx(wanted, rel=1e-5)


def test_the_seed_of_a_run_changes_its_masks(tmp_path: Path) -> None:
    hspmd.compile(made, strategy=ONE, optimizer=SGD).save(tmp_path / "one")
    losses = []
    for seed in (0, 1, 0):
        with engine_of(tmp_path / "one") as engine:
            engine.seed = seed
            losses.append(engine.step(batch_of(0)))
    assert losses[0] == losses[2] != losses[1]


def test_a_rank_as_an_fx_module_takes_the_keys() -> None:
    from hspmd_compiler.program.fx.to_fx import LOSS, rank_module

    from ..program.rank_arguments import rank_arguments

    compiled = hspmd.compile(made()[0], batch_of(0), strategy=ONE, optimizer=SGD)
    program, model = compiled.artifact.program, made()[0]
    state = dict(model.named_parameters())
    arguments = rank_arguments(program, 0, state, batch_of(0), seed=0, step=4)
    wanted = eager_step(model, batch_of(0), widen=False, step=4).loss
    assert float(rank_module(program, 0)(*arguments)[LOSS]) == pytest.approx(wanted, rel=1e-5)
