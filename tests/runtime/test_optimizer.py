"""AdamW and SGD on shards against torch.optim, and clipping against clip_grad_norm_."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.program.program import Shard
from hspmd_compiler.runtime.gradient_norm import clip, global_norm
from hspmd_compiler.runtime.optimizer import ShardOptimizer
from hspmd_compiler.runtime.shards import owned_grads

SHAPES = {"fc.weight": (5, 7), "fc.bias": (5,), "norm.weight": (3,), "unused": (2,)}
TOLERANCE = {torch.float64: 1e-15, torch.float32: 1e-7, torch.complex128: 1e-15}

configs = st.one_of(
    st.builds(
        OptimizerConfig,
        name=st.just(OptimizerName.ADAMW),
        lr=st.sampled_from([1e-3, 0.1]),
        betas=st.sampled_from([(0.9, 0.999), (0.0, 0.5), (0.8, 0.95)]),
        eps=st.sampled_from([1e-8, 1e-3]),
        weight_decay=st.sampled_from([0.0, 0.1]),
        no_decay=st.sampled_from([(), ("bias", "norm")]),
    ),
    st.builds(
        OptimizerConfig,
        name=st.just(OptimizerName.SGD),
        lr=st.sampled_from([1e-3, 0.1]),
        weight_decay=st.sampled_from([0.0, 0.1]),
        momentum=st.sampled_from([0.5, 0.9]),
        nesterov=st.booleans(),
        no_decay=st.sampled_from([(), ("bias", "norm")]),
    ),
    st.builds(OptimizerConfig, name=st.just(OptimizerName.SGD), lr=st.just(0.1)),
)


def reference(config: OptimizerConfig, params: dict[str, torch.Tensor]) -> torch.optim.Optimizer:
    groups = [{"params": [param], "weight_decay": config.decay_of(name)} for name, param in params.items()]
    if config.name is OptimizerName.ADAMW:
        return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov)


@settings(max_examples=40, deadline=None)
@given(config=configs, dtype=st.sampled_from(list(TOLERANCE)), seed=st.integers(0, 99))
def test_equal_to_torch(config: OptimizerConfig, dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ours = {name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in SHAPES.items()}
    theirs = {name: tensor.clone().requires_grad_() for name, tensor in ours.items()}
    untouched = ours["unused"].clone()
    optimizer, torch_optimizer = ShardOptimizer(config), reference(config, theirs)
    for lr in (config.lr, config.lr, config.lr / 2, config.lr):
        grads = {name: torch.randn_like(ours[name]) for name in SHAPES if name != "unused"}
        for name, grad in grads.items():
            theirs[name].grad = grad.clone()
        for group in torch_optimizer.param_groups:
            group["lr"] = lr
        torch_optimizer.step()
        kept = {name: grad.clone() for name, grad in grads.items()}
        optimizer.update(ours, grads, lr)
        assert all(torch.equal(grads[name], kept[name]) for name in grads)
    for name in SHAPES:
        torch.testing.assert_close(
            ours[name], theirs[name].detach(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )
    assert torch.equal(ours["unused"], untouched) and "unused" not in optimizer.state


def shard(name: str, whole: int, low: int, high: int, owned: bool) -> Shard:
    boxes = ((((low, high),), ((0, high - low),)),)
    size = (high - low,)
    return Shard(name, "float64", size, size, (whole,), (whole,), boxes, boxes if owned else (), True, False)


@pytest.mark.parametrize("max_norm", [0.5, 1e6, math.inf])
def test_clipping_counts_each_element_once(max_norm: float) -> None:
    split, copied = torch.randn(6, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    whole = [split.clone(), copied.clone()]
    for tensor in whole:
        tensor.requires_grad_()
        tensor.grad = tensor.detach().clone()
    expected = torch.nn.utils.clip_grad_norm_(whole, max_norm)
    ranks = [
        (
            {"a": split[:2].clone(), "b": copied.clone()},
            [shard("a", 6, 0, 2, True), shard("b", 4, 0, 4, True)],
        ),
        (
            {"a": split[2:].clone(), "b": copied.clone()},
            [shard("a", 6, 2, 6, True), shard("b", 4, 0, 4, False)],
        ),
    ]
    squares: list[torch.Tensor] = []

    def collect(part: torch.Tensor) -> torch.Tensor:
        squares.append(part)
        return part

    for grads, shards in ranks:
        global_norm(owned_grads(shards, grads), torch.device("cpu"), collect)
    total = sum(squares, torch.zeros((), dtype=torch.float64))
    for grads, shards in ranks:
        norm = global_norm(owned_grads(shards, grads), torch.device("cpu"), lambda _: total)
        assert norm == pytest.approx(float(expected), rel=1e-14)
        clip(grads, norm, max_norm)
    joined = torch.cat([ranks[0][0]["a"], ranks[1][0]["a"]])
    torch.testing.assert_close(joined, whole[0].grad, rtol=1e-14, atol=0)
    torch.testing.assert_close(ranks[1][0]["b"], whole[1].grad, rtol=1e-14, atol=0)
