"""The update by torch's fused kernels: bits, shards, layouts of gradients, and memory."""

from __future__ import annotations

import math
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hspmd_compiler.options import Arithmetic, OptimizerConfig, OptimizerName
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.gradient_norm import clip
from hspmd_compiler.runtime.optimizer import ShardOptimizer
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.runtime.start.rendezvous import Timeouts
from tests.runtime import hand_made

STEPS = 3
REAL = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
CONFIGS = (
    OptimizerConfig(lr=0.1, weight_decay=0.1),
    OptimizerConfig(name=OptimizerName.SGD, lr=0.1),
    OptimizerConfig(name=OptimizerName.SGD, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
)


def drawn(size: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)


def trained(
    config: OptimizerConfig, params: dict[str, Tensor], grads: list[dict[str, Tensor]]
) -> dict[str, dict[str, Tensor]]:
    optimizer = ShardOptimizer(config)
    for each in grads:
        optimizer.update(params, each, config.lr)
    return optimizer.state


@settings(max_examples=40, deadline=None)
@given(
    config=st.sampled_from(CONFIGS),
    dtype=st.sampled_from((*REAL, torch.complex64)),
    size=st.integers(1, 300),
    cuts=st.sets(st.integers(1, 299), max_size=4),
    seed=st.integers(0, 99),
)
def test_an_element_has_the_same_bits_in_every_shard(
    config: OptimizerConfig, dtype: torch.dtype, size: int, cuts: set[int], seed: int
) -> None:
    ends = [0, *sorted(cut for cut in cuts if cut < size), size]
    pieces = dict(enumerate(pairwise(ends)))
    whole, rows = drawn(size, dtype, seed), [drawn(size, dtype, seed + 1 + step) for step in range(STEPS)]
    shards = {str(number): whole[low:high].clone() for number, (low, high) in pieces.items()}
    of_shards = [
        {str(number): row[low:high].clone() for number, (low, high) in pieces.items()} for row in rows
    ]
    of_whole = trained(config, {"all": whole}, [{"all": row} for row in rows])
    state = trained(config, shards, of_shards)
    assert torch.equal(torch.cat([*shards.values()]), whole)
    for moment in config.moments:
        assert torch.equal(torch.cat([state[name][moment] for name in shards]), of_whole["all"][moment])


@pytest.mark.parametrize("config", CONFIGS, ids=lambda each: f"{each.name.value} {each.momentum}")
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_layout_and_type_of_a_gradient_do_not_matter(config: OptimizerConfig, dtype: torch.dtype) -> None:
    start, grad = drawn(24 * 40, dtype, 0).view(24, 40), drawn(24 * 40, dtype, 1).view(24, 40)
    ones = torch.ones((), dtype=dtype)
    given = {
        "as it is": grad,
        "transposed": grad.t().contiguous().t(),
        "a part": torch.cat([grad, grad], 1)[:, :40],
        "wide": grad.double(),
    }
    ours = {name: start.clone() for name in given} | {"expanded": start.clone(), "ones": start.clone()}
    trained(config, ours, [given | {"expanded": ones.expand(24, 40), "ones": ones.repeat(24, 40)}])
    for name in given:
        assert torch.equal(ours[name], ours["as it is"]), name
    assert torch.equal(ours["expanded"], ours["ones"])


def test_a_parameter_that_is_not_contiguous_is_updated_as_any() -> None:
    start, grad = drawn(24 * 40, torch.float64, 0).view(24, 40), drawn(24 * 40, torch.float64, 1).view(24, 40)
    ours = {"rows": start.clone(), "columns": start.t().contiguous().t()}
    trained(CONFIGS[0], ours, [{"rows": grad, "columns": grad}] * STEPS)
    torch.testing.assert_close(ours["columns"], ours["rows"], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda each: f"{each.name.value} {each.momentum}")
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_numbers_are_those_of_double_precision_rounded(config: OptimizerConfig, dtype: torch.dtype) -> None:
    """Every type, whole vectors and ends: torch's kernel for SGD in 16 bits is wrong on CPUs."""
    narrow, step = {"p": drawn(547, dtype, 0)}, drawn(547, dtype, 1)
    wide = {"p": narrow["p"].double().clone()}
    held, wanted = trained(config, narrow, [{"p": step}]), trained(config, wide, [{"p": step.double()}])
    for found, right in (
        (narrow["p"], wide["p"]),
        *zip(held["p"].values(), wanted["p"].values(), strict=True),
    ):
        gap = (found.double() - right).abs() / (right.abs() + 1)
        assert float(gap.max()) < 4 * torch.finfo(dtype).eps


@settings(max_examples=30, deadline=None)
@given(
    config=st.sampled_from(CONFIGS),
    dtype=st.sampled_from((*REAL, torch.complex64)),
    size=st.integers(1, 300),
    seed=st.integers(0, 99),
)
def test_deterministic_has_the_bits_of_torch_optim(
    config: OptimizerConfig, dtype: torch.dtype, size: int, seed: int
) -> None:
    ours = {"p": drawn(size, dtype, seed)}
    theirs = ours["p"].clone().requires_grad_()
    if config.name is OptimizerName.ADAMW:
        reference: Any = torch.optim.AdamW([theirs], lr=config.lr, weight_decay=config.weight_decay)
    else:
        reference = torch.optim.SGD(
            [theirs], config.lr, config.momentum, 0.0, config.weight_decay, config.nesterov
        )
    optimizer = ShardOptimizer(config, deterministic=True)
    for step in range(STEPS):
        theirs.grad = drawn(size, dtype, seed + 1 + step)
        optimizer.update(ours, {"p": theirs.grad.clone()}, config.lr)
        reference.step()
    assert torch.equal(ours["p"], theirs.detach())


class Largest(TorchDispatchMode):
    """The most bytes that one operator has made, and the operators that were called."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.called: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        held = {each.untyped_storage().data_ptr() for each in _tensors(args)}
        made = func(*args, **(kwargs or {}))
        self.called.append(str(func))
        for each in _tensors(made):
            if each.untyped_storage().data_ptr() not in held:
                self.bytes = max(self.bytes, each.untyped_storage().nbytes())
        return made


def _tensors(held: Any) -> list[Tensor]:
    if isinstance(held, Tensor):
        return [held]
    return [each for part in held for each in _tensors(part)] if isinstance(held, (list, tuple)) else []


@pytest.mark.parametrize("config", CONFIGS, ids=lambda each: f"{each.name.value} {each.momentum}")
def test_an_update_takes_no_memory(config: OptimizerConfig) -> None:
    params = {f"p{size}": drawn(size, torch.float32, size) for size in (4096, 4099, 8192)}
    grads = {name: torch.randn_like(param) for name, param in params.items()}
    optimizer = ShardOptimizer(config)
    optimizer.update(params, grads, config.lr)
    with Largest() as seen:
        optimizer.update(params, grads, config.lr)
    assert seen.bytes <= 64, seen.called
    assert sum("_fused_" in name for name in seen.called) == 1


def test_gradients_below_the_limit_are_not_touched() -> None:
    grads = {"a": torch.ones(4)}
    with Largest() as seen:
        clip(grads, 2.0, 2.5)
    assert not seen.called and torch.equal(grads["a"], torch.ones(4))
    clip(grads, math.nan, 2.5)
    assert grads["a"].isnan().all()


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_run_updates_as_it_is_asked(tmp_path: Path, deterministic: bool) -> None:
    """Two updates of real ranks, from their own gradients: torch.optim's bits, or rounding beside them."""
    config = OptimizerConfig(lr=0.1)
    artifact = hand_made.save(tmp_path / "artifact", config)
    gaps: list[float] = []

    def job(engine: Engine, emit: Emit) -> None:
        first = {name: value.clone().requires_grad_() for name, value in engine.params.items()}
        reference = torch.optim.AdamW([*first.values()], lr=0.1, weight_decay=0.0)
        for step in range(2):
            engine.step(hand_made.batch(step))
            for name, grad in engine.active.state.synced.items():
                first[name].grad = grad.clone()
            reference.step()
        gap = max(float((first[name].detach() - value).abs().max()) for name, value in engine.params.items())
        emit({"gap": gap})

    wait = Timeouts(timedelta(seconds=60), timedelta(seconds=60))
    options = StartOptions(timeouts=wait, arithmetic=Arithmetic(deterministic=deterministic))
    launch(artifact, job, options, on_record=lambda record: gaps.append(cast(float, record["gap"])))
    assert len(gaps) == 1
    assert gaps[0] == 0.0 if deterministic else gaps[0] < 1e-14
