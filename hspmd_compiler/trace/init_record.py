"""Records how a factory fills its parameters, while it builds a model of fake tensors for `trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from ..base.collection import without_collection
from ..base.source_lines import causes, line_of_caller, line_of_error
from ..errors import HspmdError, TraceError
from ..program.arguments import leaves, map_leaves
from ..program.init_program import CONSTANT, RESEED, RESTORE, TRUNC_NORMAL, InitProgram, is_allowed
from .capture import (
    DispatchRecorder,
    building_fakes,
    new_fake_mode,
    real_tensors,
)
from .init_steps import Call, RecordedTensor, live_calls, program_of, values_of
from .state.held_tensors import tables_as_buffers
from .tensor_memory import is_fake, storage_key

Inputs = Mapping[str, torch.Tensor]
Factory = Callable[[], tuple[nn.Module, Inputs]]
Numbers = Callable[[torch.Tensor], torch.Tensor | None]
MemoryGeometry = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]

MOST_CONSTANTS = 1 << 16
_MARK = 0x6873706D64 << 20  # seeds that no user chooses: the generator holds one unless it was reseeded
_OVERWRITE = frozenset(
    ("normal_", "uniform_", "fill_", "zero_", "copy_", "exponential_", "log_normal_", "random_", "bernoulli_")
)
_LIKE = frozenset(
    f"aten.{name}.default"
    for name in ("ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full")
)
"""Operators that take shape and type of a tensor, not its numbers."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A model of fake tensors, its example inputs, and how its parameters and buffers come about.

    numbers: what a tensor of the factory holds; None where random numbers are behind it.
    """

    model: nn.Module
    example_inputs: dict[str, torch.Tensor]
    init: InitProgram
    numbers: Numbers


def record_factory(factory: Factory) -> Recorded:
    """Call `factory` once, without memory for weights. Tied parameters are final under their first name."""
    with without_collection():
        return _recorded(*_build(factory))


def _recorded(recorder: _Recorder, model: nn.Module, inputs: Inputs) -> Recorded:
    named = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    order = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    finals = {name: recorder.value_of(named[name]).id for name in order}
    init = program_of(recorder.calls, finals, recorder.memory_of)
    return Recorded(model, dict(inputs), init, recorder.numbers)


def build_fake(factory: Factory) -> tuple[nn.Module, Inputs]:
    """The model of fake tensors and the example inputs, as in `record_factory`."""
    _, model, inputs = _build(factory)
    return model, inputs


def _build(factory: Factory) -> tuple[_Recorder, nn.Module, Inputs]:
    recorder = _Recorder()
    state = torch.get_rng_state()
    recorder.mark()
    try:
        with building_fakes(recorder.trunc_normal), new_fake_mode(), DispatchRecorder(recorder.call):
            model, inputs = factory()
            if isinstance(model, nn.Module):
                tables_as_buffers(model)
    except Exception as error:
        raise _failure(error) from error
    finally:
        torch.set_rng_state(state)
    return recorder, model, inputs


def _failure(error: Exception) -> HspmdError:
    for cause in causes(error):
        if isinstance(cause, HspmdError):
            return cause
    return TraceError(
        "the model can't be built",
        at=line_of_error(error),
        details=[(type(error).__name__, str(error)[:300])],
        rule="a factory builds the model without looking at the values of random tensors",
        fix="check that the factory runs by itself in Python",
    )


@dataclass(slots=True)
class _Memory:
    """One content of a storage: overwriting all of it begins the next one."""

    id: int
    base: RecordedTensor
    geometry: MemoryGeometry
    views: dict[MemoryGeometry, RecordedTensor]


class _Recorder:
    """Turns dispatched calls into `Call`s over tensors known by storage and geometry.

    View operators are not recorded: a tensor is looked up by its geometry in its storage, and becomes
    an `as_strided` of the whole where it is needed. So `.data`, detach and aliases need no care.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.memory_of: dict[int, int] = {}
        self._memories: dict[int, _Memory] = {}
        self._alive: list[torch.UntypedStorage] = []  # a key stays one storage's
        self._draws = 0

    def call(
        self, func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Record one operator and let it run on fake tensors."""
        if func is torch.ops.aten._local_scalar_dense.default:
            return self._scalar(args[0])
        draws = torch.Tag.nondeterministic_seeded in func.tags
        own = any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values()))
        if draws and not own:
            self._notice_reseed()
        kept = {key: value for key, value in kwargs.items() if key not in ("device", "layout", "pin_memory")}
        encoded, named = map_leaves((args, kept), self._encode)
        result = func(*args, **kwargs)
        if draws and not own:
            self._draws += 1
            self.mark()
        self._record(func, args, encoded, named, result, self._draws if draws and not own else 0)
        return result

    def trunc_normal(
        self, tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: object = None
    ) -> torch.Tensor:
        """Record `torch.nn.init.trunc_normal_` as one call."""
        self._notice_reseed()
        value = self._new_content(tensor) if _is_whole(tensor) else self.value_of(tensor)
        memories = frozenset((self.memory_of[value.id],))
        self._draws += 1
        self.mark()
        args = (value, mean, std, a, b, *([generator] if generator is not None else []))
        func = torch.nn.init.trunc_normal_
        self.calls.append(Call(TRUNC_NORMAL, func, args, writes=memories, reads=memories, draw=self._draws))
        return tensor

    def mark(self) -> None:
        """Give the generator a seed of ours, so that a reseed by the factory shows."""
        torch.default_generator.manual_seed(_MARK + self._draws)

    def _notice_reseed(self) -> None:
        seed = torch.default_generator.initial_seed()
        if seed == _MARK + self._draws:
            return
        if _MARK <= seed < _MARK + self._draws:
            self.calls.append(Call(RESTORE, None, (seed - _MARK,)))
        else:
            self.calls.append(Call(RESEED, None, (seed,)))

    def _record(
        self,
        func: torch._ops.OpOverload,
        args: tuple[object, ...],
        encoded: tuple[object, ...],
        kwargs: dict[str, object],
        result: object,
        draw: int,
    ) -> None:
        changed = [
            encoded[i] for i, a in enumerate(func._schema.arguments) if _is_written(a) and i < len(encoded)
        ]
        changed += [kwargs[a.name] for a in func._schema.arguments if _is_written(a) and a.name in kwargs]
        if changed and self._overwrites(func, args):
            encoded = (self._new_content(args[0]), *encoded[1:])  # type: ignore[arg-type]
            changed = [encoded[0]]
        fresh = [t for t in _tensors(result) if storage_key(t) not in self._memories]
        if not fresh and not changed:
            return
        if fresh and _is_empty(func):
            self._allocate(fresh[0], zero=True)
            return
        outs = tuple(self._new_memory(t).base for t in fresh)
        if len(fresh) == 1 and isinstance(result, torch.Tensor) and _takes_dtype(func):
            kwargs = {**kwargs, "dtype": result.dtype}
        reads = {self.memory_of[v.id] for v in values_of((encoded, kwargs))}
        writes = {self.memory_of[v.id] for v in (*outs, *values_of(tuple(changed)))}
        op = str(func)
        self.calls.append(
            Call(
                op,
                func,
                encoded,
                kwargs,
                tuple(v.id for v in outs),
                frozenset(writes),
                frozenset(reads),
                draw=draw,
                where="" if is_allowed(op) else line_of_caller(),
            )
        )

    def _overwrites(self, func: torch._ops.OpOverload, args: tuple[object, ...]) -> bool:
        target = args[0]
        if func._schema.name.removeprefix("aten::") not in _OVERWRITE or not isinstance(target, torch.Tensor):
            return False
        others = [storage_key(t) for t in _tensors(args[1:])]
        return _is_whole(target) and storage_key(target) not in others

    def _new_content(self, tensor: torch.Tensor) -> RecordedTensor:
        del self._memories[storage_key(tensor)]
        return self._allocate(tensor, zero=False)

    def _allocate(self, tensor: torch.Tensor, zero: bool) -> RecordedTensor:
        memory = self._new_memory(tensor)
        size, stride, _, dtype = memory.geometry
        empty, clear = torch.ops.aten.empty_strided.default, torch.ops.aten.zero_.default
        own = frozenset((memory.id,))
        self.calls.append(Call(str(empty), empty, (size, stride), {"dtype": dtype}, (memory.base.id,), own))
        if zero:  # what the factory leaves unset must still be the same on every rank
            self.calls.append(Call(str(clear), clear, (memory.base,), writes=own, reads=own))
        return memory.base

    def _new_memory(self, tensor: torch.Tensor) -> _Memory:
        geometry = _geometry(tensor)
        memory = _Memory(len(self.memory_of), RecordedTensor(len(self.memory_of)), geometry, {})
        memory.views[geometry] = memory.base
        self.memory_of[memory.base.id] = memory.id
        self._memories[storage_key(tensor)] = memory
        self._alive.append(tensor.untyped_storage())
        return memory

    def value_of(self, tensor: torch.Tensor) -> RecordedTensor:
        """The value that now stands for `tensor`; a view of its memory is made if there is none yet."""
        memory = self._memories.get(storage_key(tensor)) or self._constant(tensor)
        geometry = _geometry(tensor)
        if geometry not in memory.views:
            size, stride, offset, dtype = geometry
            if dtype != memory.geometry[3]:
                raise TraceError(
                    "the model's initialisation reads a tensor as another type", fix="use tensor.to(dtype)"
                )
            view = RecordedTensor(len(self.memory_of))
            self.memory_of[view.id] = memory.id
            memory.views[geometry] = view
            func = torch.ops.aten.as_strided.default
            self.calls.append(
                Call(str(func), func, (memory.base, size, stride, offset), outs=(view.id,), is_view=True)
            )
        return memory.views[geometry]

    def _constant(self, tensor: torch.Tensor) -> _Memory:
        if is_fake(tensor) or tensor.numel() > MOST_CONSTANTS or tensor.is_complex():
            raise TraceError(
                f"the factory brings a tensor of {tensor.numel()} numbers from elsewhere",
                rule=f"an initialisation may hold at most {MOST_CONSTANTS} literal numbers",
                fix="make the weights with torch.nn.init, or give them with --init FILE",
            )
        with real_tensors():
            content = tensor.detach().contiguous()
            numbers = (
                content.double().flatten().tolist()
                if tensor.is_floating_point()
                else content.flatten().tolist()
            )
        memory = self._new_memory(tensor)
        size = memory.geometry[0]
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.calls.append(
            Call(
                CONSTANT, None, (dtype, size, numbers), outs=(memory.base.id,), writes=frozenset((memory.id,))
            )
        )
        return memory

    def _encode(self, value: object) -> object:
        return self.value_of(value) if isinstance(value, torch.Tensor) else value

    def _scalar(self, tensor: object) -> object:
        """The number in a tensor that depends on no random one, found by running its calls for real."""
        assert isinstance(tensor, torch.Tensor)
        wanted, calls = self._calls_of(tensor)
        if any(call.draw for call in calls):
            raise TraceError(
                "the factory looks at the value of a random tensor",
                rule="a model is built without numbers, so only fixed values can be read",
                fix="don't call .item() or compare random tensors while building the model",
            )
        with real_tensors():
            return _made(calls)[wanted].item()

    def numbers(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What a tensor holds, found by running its calls for real; None where random ones are in it."""
        wanted, calls = self._calls_of(tensor)
        if self.memory_of[wanted] in _random_memories(calls):
            return None
        with torch.random.fork_rng(devices=()):
            return _made([call for call in calls if call.op not in (RESEED, RESTORE)])[wanted]

    def _calls_of(self, tensor: torch.Tensor) -> tuple[int, list[Call]]:
        wanted = self.value_of(tensor).id
        return wanted, live_calls(self.calls, {wanted}, {self.memory_of[wanted]})


def _random_memories(calls: Iterable[Call]) -> set[int]:
    """Memories that hold random numbers, or what is made of such."""
    found: set[int] = set()
    for call in calls:
        drawn = call.draw or any(
            isinstance(each, torch.Generator) for each in leaves((call.args, call.kwargs))
        )
        if drawn or (call.reads & found and call.op not in _LIKE):
            found |= call.writes
    return found


def _made(calls: Iterable[Call]) -> dict[int, torch.Tensor]:
    """What calls make when they run for real."""
    made: dict[int, torch.Tensor] = {}
    with real_tensors(), torch.no_grad():
        for call in calls:
            made.update(zip(call.outs, _tensors(_run(call, made)), strict=False))
    return made


def _run(call: Call, made: Mapping[int, torch.Tensor]) -> object:
    if call.func is None:
        dtype, size, numbers = call.args
        return torch.tensor(numbers, dtype=getattr(torch, str(dtype))).reshape(cast(tuple[int, ...], size))
    args, kwargs = map_leaves(
        (call.args, call.kwargs), lambda leaf: made[leaf.id] if isinstance(leaf, RecordedTensor) else leaf
    )
    return call.func(*args, **kwargs)


def _tensors(value: object) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def _geometry(tensor: torch.Tensor) -> MemoryGeometry:
    return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype


def _is_whole(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize


def _is_written(argument: torch._C.Argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _is_empty(func: torch._ops.OpOverload) -> bool:
    return func._schema.name.removeprefix("aten::") in (
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    )


def _takes_dtype(func: torch._ops.OpOverload) -> bool:
    return any(a.name == "dtype" and a.kwarg_only for a in func._schema.arguments)
