"""What must never be silently wrong: each of these, broken on purpose, is found by the comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hspmd_compiler.errors import VerifyError
from hspmd_compiler.ir.annotated import AnnotatedValue
from hspmd_compiler.layout.layout import whole
from hspmd_compiler.passes.deduction import deduce_results, grad_terms
from hspmd_compiler.passes.deduction.deducer import Deducer
from hspmd_compiler.program.kernels import kernels
from hspmd_compiler.program.program import Program
from hspmd_compiler.verify.equality import check_equal, differences, gradient_floor, loss_difference
from hspmd_compiler.verify.values import simulate
from hspmd_compiler.verify.widen import widen_program

from ..training.test_end_to_end import EXACT, batches, reference, start
from ..training.training_cases import STRATEGIES, graph_of, program_for

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def fresh_kernels() -> Iterator[None]:
    """Kernels are looked up again, before and after."""
    kernels.kernel.cache_clear()
    kernels.fast_kernel.cache_clear()
    yield
    kernels.kernel.cache_clear()
    kernels.fast_kernel.cache_clear()


def equal(
    subject: str, strategy: str, damage: Callable[[Program], Program] = lambda program: program
) -> bool:
    """Whether loss and all gradients of the first step are exact."""
    program = widen_program(damage(program_for(graph_of(subject), STRATEGIES[strategy])))
    wanted = reference(subject, True)
    try:
        found = simulate(program, start(subject, True), batches(subject, True)[:1])
        check_equal([loss_difference(found.losses[0], wanted.losses[0])], EXACT, "loss")
        check_equal(
            differences(found.grads[0], wanted.grads, gradient_floor(wanted.grads)), EXACT, "gradients"
        )
    except VerifyError:
        return False
    return True


def broken_kernel(patch: Patch, name: str, broken: Callable[..., Any]) -> None:
    patch.setitem(kernels.OWN_KERNELS, name, broken)


@pytest.mark.parametrize(("subject", "strategy"), [("gpt2", "mixed"), ("mlp-ce", "micro")])
def test_unbroken(subject: str, strategy: str) -> None:
    assert equal(subject, strategy)


def test_a_count_of_one_micro_batch(monkeypatch: Patch) -> None:
    """Loss weighting: each micro-batch divided by its own number of valid tokens."""

    def own_count(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
        return deducer.emit("aten.clone.default", (value,), whole(()), dtype=value.dtype)

    monkeypatch.setattr(Deducer, "step_value", own_count)
    assert not equal("mlp-ce", "micro")


def test_padding_that_counts(monkeypatch: Patch) -> None:
    def all_rows(target: Tensor, ignore: int, dtype: torch.dtype) -> Tensor:
        return torch.tensor(float(target.numel())).to(dtype)

    broken_kernel(monkeypatch, "hspmd.valid_count", all_rows)
    assert not equal("mlp-ce", "dp32")


def test_a_bias_on_every_rank(monkeypatch: Patch) -> None:
    broken_kernel(monkeypatch, "hspmd.zero_unless", lambda value, keep: value)
    assert not equal("gpt2", "tp3")


@pytest.mark.parametrize(
    ("subject", "strategy"),
    [("llama", "sp-heads3111"), ("llama-kv1", "tp3"), ("mlp-mse", "dp32"), ("gpt2", "tp32"), ("gpt2", "pp")],
    ids=["norms under sequence parallelism", "duplicated heads", "pipelines", "fused weight", "tied weight"],
)
def test_gradients_that_are_not_reduced(subject: str, strategy: str) -> None:
    def alone(program: Program) -> Program:
        ranks = [
            replace(rank, grad_buckets=[replace(bucket, group=(rank.rank,)) for bucket in rank.grad_buckets])
            for rank in program.ranks
        ]
        return replace(program, ranks=ranks)

    assert not equal(subject, strategy, alone)


def test_one_end_of_a_tied_weight(monkeypatch: Patch) -> None:
    both = grad_terms.terms

    def first(*arguments: Any) -> list[int]:
        return both(*arguments)[:1]

    monkeypatch.setattr(deduce_results, "terms", first)
    assert not equal("gpt2", "pp")


def test_targets_of_other_ranks(monkeypatch: Patch) -> None:
    """A target whose class another rank holds is picked there only."""
    right = kernels.OWN_KERNELS["hspmd.nll_pick"]

    def wrong(logp: Tensor, target: Tensor, intervals: Any, ignore: int) -> Tensor:
        return right(logp, target % max(1, logp.shape[1]), ((0, logp.shape[1]),), ignore)  # type: ignore[no-any-return]

    broken_kernel(monkeypatch, "hspmd.nll_pick", wrong)
    assert not equal("llama", "tp3")
