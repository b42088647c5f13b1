"""The values that a run starts with are those that the model's own code makes, or those of the live model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from ..artifact.store import Artifact
from ..errors import VerifyError
from ..program.init_program import from_json
from ..program.initial import replay
from ..program.program import Program
from ..runtime.saved.initial_params import check_made
from ..runtime.saved.loaded_names import ModelNames, match_names, named_shards
from ..runtime.saved.safetensors_file import SafetensorsReader
from .reference import SEED, Reference, ReferenceOrigin

RULE = "a run without `--init` starts with the values that the model's own code makes from the seed"
SHOWN = 20


def checked_start(artifact: Artifact, reference: Reference) -> tuple[Reference, str]:
    """The reference with the values that a run starts with, and what was compared, in words.

    A VerifyError names every tensor whose first values are others than the model's.
    """
    if artifact.weights is not None:
        return _from_weights(artifact, reference)
    if artifact.init is None:
        return reference, "no initial values in the artifact: a run needs --init"
    if reference.origin is not ReferenceOrigin.MADE:
        return reference, "initial values not compared: the model was given with values of its own"
    made = replayed(artifact)
    wrong = _differing(reference.state, made)
    if wrong and reference.again is not None:
        own = _differing(reference.state, reference.again())
        wrong = [name for name in wrong if name not in own]
    _refuse(wrong, "the values that ranks start with are not those of the model")
    return reference, f"initial values: {len(made)} tensors as the model makes them from seed {SEED}"


def replayed(artifact: Artifact) -> dict[str, Tensor]:
    """What every rank cuts its pieces from, of the seed of proofs."""
    made: dict[str, Tensor] = {}
    shards = {shard.name: shard for own in artifact.program.ranks for shard in own.shards}
    largest = max((prod(shard.whole_shape) for shard in shards.values()), default=0)

    def keep(name: str, whole: Tensor) -> None:
        if name in shards:
            check_made(shards[name], whole)
            made[name] = whole.clone()

    replay(from_json(artifact.init), SEED, keep, largest)
    _refuse(sorted(shards.keys() - made.keys()), "the initialisation doesn't make every parameter")
    return made


def _from_weights(artifact: Artifact, reference: Reference) -> tuple[Reference, str]:
    assert artifact.weights is not None, "asked only where there are some"
    held = read_weights(artifact.program, SafetensorsReader(artifact.weights))
    if reference.origin is ReferenceOrigin.GIVEN:
        _refuse(_differing(reference.state, held), "the stored weights are not those of the model")
        return reference, f"initial values: {len(held)} tensors as in the given model"
    state = {
        name: held.get(artifact.program.aliases.get(name, name), value)
        for name, value in reference.state.items()
    }
    return replace(reference, state=state), f"initial values: {len(held)} stored tensors, not compared"


def read_weights(program: Program, file: SafetensorsReader) -> dict[str, Tensor]:
    """Whole tensors of an artifact's weights by our names, as its ranks match them."""
    names = ModelNames.of_shards(
        program, [named_shards(own.shards, unsaved_too=True) for own in program.ranks]
    )
    found = match_names(names, file.shapes, all_buffers=False)
    return {name: file.whole(given) for name, (given, *_) in found.items()}


def _differing(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> list[str]:
    return [name for name, value in theirs.items() if name in ours and not _same(ours[name], value)]


def _same(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(torch.equal(one, other) or ((one == other) | (one.isnan() & other.isnan())).all())


def _refuse(wrong: list[str], what: str) -> None:
    if wrong:
        raise VerifyError(
            what,
            details=[(name, "other values") for name in wrong[:SHOWN]],
            rule=RULE,
            fix="compile again; a live model must not change between saving and verifying",
        )
