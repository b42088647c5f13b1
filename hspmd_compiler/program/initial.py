"""Replays a recorded initialisation: the same numbers as the model's own code, a tensor or two at a time."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import cast

import torch

from ..errors import ArtifactError, HspmdError, first_line
from .init_program import (
    CONSTANT,
    DTYPE,
    FLOAT,
    MEMORY_FORMAT,
    POINTWISE_NAMES,
    RESEED,
    RESTORE,
    TRUNC_NORMAL,
    VALUE,
    InitProgram,
    InitStep,
    is_allowed,
)
from .operator_names import torch_operator

Keep = Callable[[str, torch.Tensor], None]


MOST_ELEMENTS = 1 << 28
"""Of one tensor, where no parameter has more; of all that are alive at once, AT_ONCE times as many."""
AT_ONCE = 8
PLACED = frozenset({"device", "layout", "pin_memory"})
META = torch.device("meta")
RANGE_ARGUMENTS = {
    "aten.arange.default": ("end",),
    "aten.arange.start": ("start", "end"),
    "aten.arange.start_step": ("start", "end", "step"),
}
"""PyTorch finds the size of a range, and that of pointwise operators, by its compiler: it takes seconds and
100 MB to load on each rank. They are counted here instead."""
FARTHEST = 2.0**63


def replay(program: InitProgram, seed: int, keep: Keep, largest: int = 0) -> None:
    """Run every step as after `torch.manual_seed(seed)`; `keep(name, tensor)` gets each final tensor once.

    The tensor is the whole one; whoever keeps only a slice copies it, for it is freed right after.
    The process's own generator is left as it was. largest: elements of the model's largest parameter. A
    step that can't be computed, or asks for much more than that, is an ArtifactError that names it.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        _Replay(program, max(MOST_ELEMENTS, 4 * largest)).run(keep)


class _Replay:
    def __init__(self, program: InitProgram, most: int) -> None:
        self.program = program
        self.most = most
        self.tensors: dict[int, torch.Tensor] = {}
        self.wanted = {step.args[0] for step in program.steps if step.op == RESTORE}
        self.states: dict[object, torch.Tensor] = {}
        self.draws = 0

    def run(self, keep: Keep) -> None:
        self._save_state()
        for place, step in enumerate(self.program.steps):
            try:
                self._step(step)
            except HspmdError as error:
                raise _refused(place, step, error.what) from error
            except Exception as error:  # whatever the arguments of a file make of an operator
                raise _refused(place, step, first_line(error)) from error
            for name in step.done:
                keep(name, self.tensors[self.program.finals[name]])
            for id in step.frees:
                self.tensors.pop(id, None)

    def _step(self, step: InitStep) -> None:
        if step.op == RESEED:
            torch.manual_seed(_integer(step.args[0]))
        elif step.op == RESTORE:
            torch.set_rng_state(self.states[step.args[0]])
        elif step.op == CONSTANT:
            self.tensors[step.outs[0]] = self._constant(step)
        else:
            self._call(step)
        if step.random:
            self.draws += 1
            self._save_state()

    def _save_state(self) -> None:
        if self.draws in self.wanted:
            self.states[self.draws] = torch.get_rng_state()

    def _call(self, step: InitStep) -> None:
        args = [self._decode(arg) for arg in step.args]
        kwargs = {key: self._decode(value) for key, value in step.kwargs.items()}
        if not PLACED.isdisjoint(kwargs):
            raise ArtifactError("it says where a tensor lies, which the replay decides")
        if not step.op.partition(".")[2].partition(".")[0].endswith("_"):
            self._check_size(step.op, args, kwargs)
        made = operator(step.op)(*args, **kwargs)
        for id, tensor in zip(step.outs, made if isinstance(made, (tuple, list)) else (made,), strict=False):
            self.tensors[id] = tensor

    def _check_size(self, op: str, args: list[object], kwargs: dict[str, object]) -> None:
        """Find the result's size first, without memory, where that can be done."""
        bounds = range_bounds(op, args, kwargs)
        if bounds is not None:
            size = range_size(*bounds)
        elif op.split(".")[1] in POINTWISE_NAMES:
            size = pointwise_size([*args, *kwargs.values()])
        else:
            size = self._shadow_size(op, args, kwargs)
        alive = sum(each.numel() for each in self.tensors.values())
        if size > self.most or alive + size > AT_ONCE * self.most:
            raise ArtifactError(f"it makes {size:,} elements, and {alive:,} are there already")

    def _shadow_size(self, op: str, args: list[object], kwargs: dict[str, object]) -> int:
        """By the operator itself, on tensors without memory; 0 where it has no such form."""
        shadows = [_shadow(arg) for arg in args]
        named = {key: _shadow(item) for key, item in kwargs.items()}
        place = {"device": META} if _takes_device(op) else {}
        try:
            with META:
                made = operator(op)(*shadows, **named, **place)
        except NotImplementedError:
            return 0
        results = made if isinstance(made, (tuple, list)) else (made,)
        return sum(each.numel() for each in results if isinstance(each, torch.Tensor))

    def _constant(self, step: InitStep) -> torch.Tensor:
        dtype, shape, numbers = step.args
        made = torch_constant(dtype, torch.dtype)
        content = torch.tensor(self._decode(numbers), dtype=cast(torch.dtype, made))
        return content.reshape(cast(list[int], shape))

    def _decode(self, value: object) -> object:
        if isinstance(value, (list, tuple)):
            return [self._decode(item) for item in value]
        if not isinstance(value, Mapping):
            return value
        (kind, content), *_ = value.items()
        if kind == VALUE:
            return self.tensors[content]
        if kind == FLOAT:
            return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[content]
        if kind in (DTYPE, MEMORY_FORMAT):
            return torch_constant(content, torch.dtype if kind == DTYPE else torch.memory_format)
        raise ArtifactError(f"the initialisation has an argument of unknown kind {kind!r}")


def range_bounds(
    op: str, args: Sequence[object], named: Mapping[str, object]
) -> tuple[float, float, float] | None:
    """Start, end and step of a range, given by place or by name; None of what isn't one of such numbers."""
    names = RANGE_ARGUMENTS.get(op, ())
    given = {"start": 0, "step": 1, **dict(zip(names, args, strict=False)), **named}
    bounds = [given.get(name) for name in ("start", "end", "step")]
    numbers = [each for each in bounds if isinstance(each, (int, float)) and abs(each) < FARTHEST]
    if not names or len(args) > len(names) or len(numbers) < len(bounds):
        return None
    return numbers[0], numbers[1], numbers[2]


def range_size(start: float, end: float, step: float) -> int:
    """Elements from start to end by step; of one that goes nowhere none, which PyTorch refuses."""
    steps = (end - start) / step if step else 0.0
    return max(0, math.ceil(steps)) if abs(steps) < FARTHEST else sys.maxsize


def pointwise_size(args: Sequence[object]) -> int:
    """Elements of operands broadcast to each other."""
    shapes = [arg.shape[::-1] for arg in args if isinstance(arg, torch.Tensor)]
    return math.prod(0 if 0 in sizes else max(sizes) for sizes in zip_longest(*shapes, fillvalue=1))


def _refused(place: int, step: InitStep, reason: str) -> ArtifactError:
    return ArtifactError(
        "the initialisation can't be replayed",
        at=f"init.json: steps[{place}]",
        details=[("operator", step.op), ("reason", reason)],
        rule="it holds the calls that the model's own code made when it was compiled",
        fix="compile again",
    )


def _shadow(value: object) -> object:
    """A tensor without memory in place of one."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)
    return [_shadow(item) for item in value] if isinstance(value, list) else value


def _takes_device(op: str) -> bool:
    schema = getattr(operator(op), "_schema", None)
    return schema is not None and any(argument.name == "device" for argument in schema.arguments)


def operator(op: str) -> Callable[..., object]:
    """The torch function of an allowed `aten.name.overload`, or of TRUNC_NORMAL."""
    if op == TRUNC_NORMAL:
        return torch.nn.init.trunc_normal_
    found = torch_operator(op) if is_allowed(op) else None
    if found is not None:
        return found
    raise ArtifactError(f"torch {torch.__version__} has no operator {op!r} for an initialisation")


def torch_constant(name: object, kind: type) -> object:
    """`torch.<name>`, which must be a dtype or a memory format as `kind` says."""
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, kind):
        raise ArtifactError(f"the initialisation names {name!r}, which is no {kind.__name__}")
    return found


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise ArtifactError(f"the initialisation reseeds with {value!r}")
    return value
