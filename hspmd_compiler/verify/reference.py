"""The model that an artifact is compared with: built again, or given; the same parameters or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..artifact.literals import torch_dtype
from ..artifact.program import Program, Shard
from ..artifact.store import Artifact
from ..errors import ArtifactError, HspmdError
from ..graph.held_tensors import moving_tensors
from ..models import ModelSource, rebuild
from .eager import whole_state

SEED = 0
LIVE = "live"
GIVE_MODEL = "pass `--model MODEL`, or call `program.verify` where the model was compiled"


@dataclass(frozen=True, slots=True)
class Reference:
    """build: a fresh copy of the model, on the CPU. state: its parameters and buffers by all names.

    examples: the inputs that its factory gave, None for a live model.
    """

    build: Callable[[], nn.Module]
    state: dict[str, Tensor]
    examples: Mapping[str, Tensor] | None


def find_reference(artifact: Artifact, given: ModelSource | nn.Module | None) -> Reference:
    """The given model, or the one that the manifest describes; seeded, and checked to fit the program."""
    model, examples = _made(artifact, given)
    check_model(artifact.program, model)
    state = {name: value.detach().cpu().clone() for name, value in whole_state(model).items()}
    return Reference(lambda: _copied(model), state, examples)


def _copied(model: nn.Module) -> nn.Module:
    """A copy on the CPU; what the model keeps of an earlier call is no part of that call any more."""
    kept: dict[int, object] = {id(tensor): tensor.detach() for _, tensor in moving_tensors(model)}
    return deepcopy(model, kept).cpu()


def _made(
    artifact: Artifact, given: ModelSource | nn.Module | None
) -> tuple[nn.Module, Mapping[str, Tensor] | None]:
    if isinstance(given, nn.Module):
        return given, None
    source = given if given is not None else _rebuilt(artifact.manifest.model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return source.build()


def _rebuilt(description: object) -> ModelSource:
    """The source that the manifest describes."""
    if not isinstance(description, dict) or description.get("kind") == LIVE:
        name = description.get("name") if isinstance(description, dict) else description
        raise ArtifactError(
            f"the artifact was compiled from a live model, {name}, which can't be built again",
            rule="numbers are compared with the eager model",
            fix=GIVE_MODEL,
        )
    try:
        return rebuild(description)
    except HspmdError as error:
        raise ArtifactError(
            f"the model {description.get('name')} that the artifact was compiled from can't be built again",
            at=error.at,
            details=[("why", error.what), *error.details],
            rule="numbers are compared with the eager model",
            fix=GIVE_MODEL,
        ) from error


def check_model(program: Program, model: nn.Module) -> None:
    """An ArtifactError that lists every parameter in which model and artifact differ."""
    shards = {shard.name: shard for own in program.ranks for shard in own.shards}
    clashes = list(_clashes(program, shards, model))
    if clashes:
        raise ArtifactError(
            f"the artifact was compiled from another model: {len(clashes)} tensors differ",
            details=clashes,
            rule="names, shapes, types and ties of parameters and buffers are those at compile time",
            fix="name the model and arguments that the artifact was compiled with, or compile again",
        )


def _clashes(program: Program, shards: dict[str, Shard], model: nn.Module) -> Iterator[tuple[str, str]]:
    held = whole_state(model)
    for name, shard in sorted(shards.items()):
        if name not in held:
            yield name, "only in the artifact"
            continue
        ours, theirs = (torch_dtype(shard.dtype), shard.whole_shape), _type(held[name])
        if ours != theirs:
            yield name, f"{_typed(*ours)} in the artifact, {_typed(*theirs)} in the model"
    for name, _ in model.named_parameters():
        if program.aliases.get(name, name) not in shards:
            yield name, "only in the model"
    for alias, name in program.aliases.items():
        if alias in held and name in held and held[alias] is not held[name]:
            yield alias, f"tied to {name} in the artifact only"


def _type(tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...]]:
    return tensor.dtype, tuple(tensor.shape)


def _typed(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
