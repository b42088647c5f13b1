"""Checks of `gpu_check.py` that run one path each: kernels of the optimizer, masks, indexes, attention."""

from __future__ import annotations

import torch
from gpu_sides import Batch, Sizes, batch_of, llama, loaded, one_device
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from hspmd_compiler.errors import RunError
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.program.kernels.attention_kernels import attention, attention_backward
from hspmd_compiler.runtime.optimizer import ShardOptimizer

Lines = list[str]
RULES = (
    OptimizerConfig(lr=0.1, weight_decay=0.1),
    OptimizerConfig(name=OptimizerName.SGD, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
)
BACKENDS = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
)
ELEMENTS = 10_007


def check_optimizers(sizes: Sizes) -> Lines:
    """An update in each type beside float64 on the CPU, by kernels and by operators."""
    for config in RULES:
        for dtype in (torch.float32, torch.bfloat16):
            for deterministic in (False, True):
                _check_update(config, dtype, deterministic, sizes.device)
    return [f"updates: {len(RULES)} rules in 2 types, fused and by operators, are float64's rounded"]


def _check_update(config: OptimizerConfig, dtype: torch.dtype, deterministic: bool, device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    start, grad = (torch.randn(ELEMENTS, generator=generator).to(dtype) for _ in range(2))
    ours, wide = {"p": start.to(device)}, {"p": start.double()}
    ShardOptimizer(config, deterministic).update(ours, {"p": grad.to(device)}, config.lr)
    ShardOptimizer(config).update(wide, {"p": grad.double()}, config.lr)
    gap = ((ours["p"].double().cpu() - wide["p"]).abs() / (wide["p"].abs() + 1)).max()
    assert gap <= 8 * torch.finfo(dtype).eps, f"{config.name.value} in {dtype}: {gap}"


class Dropped(nn.Module):
    """Dropout between two layers, and a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.3)) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


SMALL = {"pipelines": [{"stages": [{"devices": [0], "layers": 2}], "micro_batches": [4]}]}
IDS: Batch = {"ids": torch.arange(32).view(4, 8)}


def check_dropout(sizes: Sizes) -> Lines:
    """Masks follow from the place of each element: those of a CPU."""
    losses = []
    for device in ("cpu", sizes.device):
        torch.manual_seed(0)
        with loaded(Dropped(), IDS, SMALL, Sizes.of(device)) as engine:
            losses.append(engine.step(IDS))
    assert abs(losses[0] - losses[1]) <= 1e-4 * abs(losses[0]), f"losses with dropout: {losses}"
    return [f"dropout: loss {losses[1]:.6f}, on a CPU {losses[0]:.6f}"]


def check_bad_index(sizes: Sizes) -> Lines:
    """It is told before the update, and training goes on."""
    with loaded(Dropped(), IDS, SMALL, sizes) as engine:
        try:
            engine.step({"ids": IDS["ids"] + 60})
        except RunError as error:
            told = error.what
        else:
            raise AssertionError("an index outside of its table was taken")
        engine.step(IDS)
        assert engine.steps == 1, f"{engine.steps} updates"
    return [f"bad index: {told}"]


def check_clipped(sizes: Sizes) -> Lines:
    """The norm is read back and gradients are scaled; state goes out and in again."""
    optimizer: dict[str, object] = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "max_grad_norm": 0.1}
    model, batch = llama(sizes, torch.float32), batch_of(sizes)
    with loaded(model, batch, one_device(sizes), sizes, optimizer) as engine:
        engine.step(batch)
        state, moments = engine.state_dict(), engine.optimizer_state_dict()
        engine.load_state_dict(state)
        engine.load_optimizer_state_dict(moments, engine.steps)
        engine.step(batch)
        again = engine.state_dict()
        assert engine.grad_norm is not None and engine.grad_norm > 0
    moved = max(float((again[name].float() - state[name].float()).abs().max()) for name in state)
    assert 0 < moved <= 0.1 * 0.1 * 1.9 + 1e-6, f"a clipped step moved a weight by {moved}"
    return [f"clipping: norm {engine.grad_norm:.3f}, the most that a weight moved {moved:.2g}"]


def check_compiled(sizes: Sizes) -> Lines:
    """torch.compile of runs, and CUDA graphs of them, beside plain ones; small, so that they are recorded."""
    small = Sizes(sizes.device, 128, 2, 32, 4)
    model, batch = llama(small, torch.float32), batch_of(small)
    stage = {"devices": [0], "layers": small.layers}
    strategy: dict[str, object] = {"pipelines": [{"stages": [stage], "micro_batches": [1, 2, 1]}]}
    losses = {}
    for ways in ((), ("torch_compile",), ("cuda_graphs",)):
        with loaded(model, batch, strategy, small, **dict.fromkeys(ways, True)) as engine:
            losses[", ".join(ways)] = [engine.step(batch) for _ in range(6)]
    plain, *others = losses.values()
    gap = max(abs(one - two) / abs(one) for other in others for one, two in zip(plain, other, strict=True))
    assert gap <= 1e-4, f"losses of plain and compiled runs: {losses}"
    return [f"torch.compile, CUDA graphs: losses of six steps differ by {gap:.1g}"]


def check_attention(sizes: Sizes) -> Lines:
    """Output and gradients of our kernel and of each backend, in the type of the type's own rounding."""
    said = []
    for dtype in (torch.bfloat16, torch.float32):
        generator = torch.Generator().manual_seed(0)
        drawn = (torch.randn(2, 4, 128, 64, generator=generator).to(dtype).to(sizes.device) for _ in range(4))
        q, k, v, grad = (each.requires_grad_() for each in drawn)
        wide = _by_torch([each.detach().double() for each in (q, k, v, grad)], SDPBackend.MATH)
        out, lse = attention(q.detach(), k.detach(), v.detach(), None, 0.0, True, None)
        ours = [out, *attention_backward(grad, q, k, v, out, lse, None, 0.0, True, None)]
        gaps = {"ours": _gap(ours, wide)}
        for backend in BACKENDS:
            try:
                gaps[backend.name.lower()] = _gap(_by_torch([q, k, v, grad], backend), wide)
            except RuntimeError:
                continue  # a backend takes some types and devices only
        most = 16 * torch.finfo(dtype).eps
        assert max(gaps.values()) <= most, f"{dtype}: {gaps}"
        said.append(f"{dtype}: " + ", ".join(f"{name} {gap:.1g}" for name, gap in gaps.items()))
    return said


def _by_torch(given: list[Tensor], backend: SDPBackend) -> list[Tensor]:
    q, k, v = (each.detach().requires_grad_() for each in given[:3])
    with sdpa_kernel(backend):
        out = scaled_dot_product_attention(q, k, v, is_causal=True)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), given[3].detach())]


def _gap(found: list[Tensor], wanted: list[Tensor]) -> float:
    """The largest of all results, relative to the largest element of each."""
    pairs = zip(found, wanted, strict=True)
    return max(float((one.detach().double() - two).abs().max() / two.abs().max()) for one, two in pairs)
