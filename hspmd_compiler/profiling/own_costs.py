"""What our runtime adds to operators: instructions, the update, sums and joins of gradients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional

from ..base.comm_plan import Box
from ..cluster.calibration import Fit
from ..options import OptimizerConfig
from ..program.arrays import TorchArrays
from ..program.program import ClassProgram, Instruction, Op, Program, RankProgram, Segment
from ..runtime.optimizer import ShardOptimizer
from .fits import Sample, fit, middle
from .one_rank import OneRank, work_timer

NAME = "empty"
EMPTY = 200
TENSORS = (4, 24)
ELEMENTS = (1 << 10, 1 << 15, 1 << 20)
ACCUMULATE, PACK, UNPACK = "accumulate", "pack", "unpack"


def warm_up(device: torch.device) -> None:
    """Operators of each kind on little data: what they load stays, and belongs to no tensor."""
    x = torch.ones(64, 64, device=device)
    heads = x.view(1, 4, 16, 64)
    y = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).reshape(64, 64)
    y = functional.gelu(functional.layer_norm(y @ x, (64,))) + functional.silu(torch.softmax(x, -1))
    image = y.view(1, 1, 64, 64)
    z = functional.conv2d(image, torch.ones(4, 1, 4, 4, device=device), stride=4).flatten()
    functional.cross_entropy(z.view(16, 64), torch.zeros(16, dtype=torch.int64, device=device))


def instruction_s(device: torch.device, repeats: int) -> float:
    """Seconds of an instruction that does nothing."""
    rank = OneRank(_empty_program(), device)
    steps = [rank.step()[:EMPTY] for _ in range(repeats + 1)]
    return middle([sum(part.end_s - part.start_s for part in parts) / EMPTY for parts in steps[1:]])


def update_fit(device: torch.device, dtype: str, repeats: int) -> Fit:
    """Of AdamW: per tensor and per byte of parameters."""

    def sample(count: int, elements: int) -> Sample:
        params, grads = _tensors(device, dtype, count, elements), _tensors(device, dtype, count, elements)
        optimizer = ShardOptimizer(OptimizerConfig())
        seconds = repeated(lambda: optimizer.update(params, grads, 1e-4), device, repeats)
        return Sample(seconds / count, 0.0, params["0"].nbytes)

    return fit([sample(count, elements) for count, elements in product(TENSORS, ELEMENTS)])


def gradient_fits(device: torch.device, dtype: str, repeats: int) -> dict[str, Fit]:
    """Per tensor and byte of a gradient: added to what is there; joined into a bucket; taken out of it."""
    samples: dict[str, list[Sample]] = {}
    for count, elements in product(TENSORS, ELEMENTS):
        work = _GradientWork(device, dtype, count, elements)
        calls = {ACCUMULATE: work.accumulate, PACK: work.pack, UNPACK: work.unpack}
        for name, call in calls.items():
            seconds = repeated(call, device, repeats) / count
            samples.setdefault(name, []).append(Sample(seconds, 0.0, work.tensor_bytes))
    return {f"{name}:{dtype}": fit(of) for name, of in samples.items()}


class _GradientWork:
    """Gradients of equal sizes, and what the executor does with them."""

    def __init__(self, device: torch.device, dtype: str, count: int, elements: int) -> None:
        self._arrays = TorchArrays(str(device))
        self._dtype, self._elements = dtype, elements
        self._grads = _tensors(device, dtype, count, elements)
        self._sums = _tensors(device, dtype, count, elements)
        self._flat = self._arrays.join(list(self._grads.values()), dtype)

    @property
    def tensor_bytes(self) -> int:
        return self._elements * self._flat.itemsize

    def accumulate(self) -> None:
        for name, grad in self._grads.items():
            self._arrays.accumulate(self._sums[name], grad, True)

    def pack(self) -> None:
        view = (self._elements,)
        boxes: tuple[Box, ...] = (((0, self._elements),),)
        rows = [
            self._arrays.pack(name, grad, self._elements, view, boxes, self._dtype)
            for name, grad in self._grads.items()
        ]
        self._arrays.join(rows, self._dtype)

    def unpack(self) -> None:
        view = (self._elements,)
        boxes: tuple[Box, ...] = (((0, self._elements),),)
        for number, (name, into) in enumerate(self._sums.items()):
            part = self._arrays.part(self._flat, number * self._elements, self._elements)
            self._arrays.fill(name, into, part, view, view, boxes)


def repeated(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Seconds of a call, of several after the first."""
    timer = work_timer(device)
    taken = []
    for _ in range(repeats + 1):
        start = timer.now()
        call()
        taken.append(timer.now() - start)
    return middle(taken[1:])


def _tensors(device: torch.device, dtype: str, count: int, elements: int) -> dict[str, Tensor]:
    return {
        str(name): torch.full((elements,), 1e-3, dtype=getattr(torch, dtype), device=device)
        for name in range(count)
    }


def _empty_program() -> Program:
    instructions = [Instruction(Op.FORWARD, segment=0, mb=0) for _ in range(EMPTY)]
    rank = RankProgram(
        rank=0,
        device=0,
        pipeline=0,
        stage=0,
        coordinate=0,
        class_name=NAME,
        device_kind="cpu",
        rows=[(0, 1)],
        literals=[],
        comms=[],
        transfers=[],
        shards=[],
        grad_buckets=[],
        instructions=[*instructions, Instruction(Op.LOSS)],
    )
    shared = ClassProgram(NAME, [Segment("nothing", [], [], [])])
    return Program(1, 1, {}, {}, {NAME: shared}, [rank], [])
