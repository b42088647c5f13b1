from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.trace.tracer import trace
from hspmd_compiler.verify.eager import eager_model, eager_step, whole_state
from hspmd_compiler.verify.equality import check_equal, differences, gradient_floor, loss_difference
from hspmd_compiler.verify.shape.fit import check_fit
from hspmd_compiler.verify.single_device import single_device_program
from hspmd_compiler.verify.values import simulate
from hspmd_compiler.verify.widen import wide_casts, widen_program

transformers = pytest.importorskip("transformers")


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=16,
        use_cache=False,
    )
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=16, use_cache=False
    )
    config.attn_pdrop = config.resid_pdrop = config.embd_pdrop = 0.0
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


@pytest.mark.parametrize("build", [llama, gpt2])
@pytest.mark.parametrize(("wide", "tolerance"), [(True, 1e-12), (False, 1e-5)])
def test_the_executor_computes_what_eager_computes(
    build: Callable[[], nn.Module], wide: bool, tolerance: float
) -> None:
    torch.manual_seed(0)
    model = build()
    ids = torch.randint(0, 64, (3, 8))
    labels = ids.masked_fill(torch.rand(ids.shape) < 0.3, -100)
    batch = {"input_ids": ids, "labels": labels}
    state = {name: value.detach().clone() for name, value in whole_state(model).items()}
    program = single_device_program(trace(model, batch, batch=3))
    report = check_fit(program)
    assert report.counts() == {"loss_reduce": 1} and report.peak[0] > 0
    found = simulate(widen_program(program) if wide else program, state, [batch])
    reference = eager_step(eager_model(build, state, wide), batch, wide)
    check_equal([loss_difference(found.losses[0], reference.loss)], tolerance, "loss")
    floor = gradient_floor(reference.grads)
    check_equal(differences(found.grads[0], reference.grads, floor), tolerance, "gradients")


class Casting(nn.Module):
    """Casts to float32 in the ways that models do."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.float() * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-6)
        steps = torch.arange(x.shape[-1], dtype=torch.float32) + torch.ones(x.shape[-1])
        return torch.log_softmax(y * steps, -1, dtype=torch.float32).sum()


def test_wide_casts_leave_no_narrow_number() -> None:
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    with wide_casts():
        loss = Casting()(x)
        loss.backward()
    exact = x.detach().clone().requires_grad_()
    y = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + 1e-6)
    expected = torch.log_softmax(y * torch.arange(1, 6).double(), -1).sum()
    expected.backward()
    assert loss.dtype == torch.float64 and torch.get_default_dtype() == torch.float32
    assert torch.allclose(loss, expected, rtol=1e-15, atol=0)
    assert x.grad is not None and exact.grad is not None
    assert torch.allclose(x.grad, exact.grad, rtol=1e-12, atol=1e-14)


def test_wide_casts_widen_what_comes_from_elsewhere() -> None:
    weights = torch.tensor([0.5, 1.0, 2.0])
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 2, 1, 2])
    with wide_casts():
        loss = nn.functional.cross_entropy(x, target, weight=weights)
        loss.backward()
    assert torch.equal(loss, nn.functional.cross_entropy(x, target, weight=weights.double()))
    assert x.grad is not None and weights.dtype == torch.float32
