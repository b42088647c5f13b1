"""What all ranks of a run must have alike before the first step, by name, as short texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from ... import __version__
from ...artifact import paths
from ...artifact.manifest import Manifest
from ...base.by_key import by_key
from ...base.number_ranges import number_ranges
from ...program.program import RankProgram

SHOWN_HASH = 12
READ_WHOLE_BYTES = 1 << 28
SAMPLED, SAMPLE_BYTES = 64, 1 << 20


def same_start(manifest: Manifest, own: RankProgram | None) -> dict[str, str]:
    """Versions, artifact and optimizer of one rank, None for a process that the artifact doesn't use.

    Of a file that only some ranks have, such as the program of a class, those that have it are compared.
    """
    files, optimizer = manifest.files, manifest.optimizer.to_json()
    common = [paths.PROGRAM, paths.STRATEGY, paths.INIT, paths.WEIGHTS]
    common += [] if own is None else [paths.class_file(own.class_name)]
    found = {
        "hspmd_compiler": __version__,
        "torch": version("torch").partition("+")[0],
        "model": _short(manifest.model_fingerprint),
        "strategy": _short(manifest.strategy_fingerprint),
        "device kinds": json.dumps(manifest.device_kinds),
        **{f"optimizer {name}": json.dumps(value) for name, value in optimizer.items()},
        "precision": manifest.precision.value,
        **{path: _short(files[path].sha256) for path in common if path in files},
    }
    if manifest.rank is None:
        text = "\n".join(f"{path} {entry.sha256}" for path, entry in files.items())
        found["all files"] = _short(hashlib.sha256(text.encode()).hexdigest())
    return found


def unlike(told: Mapping[int, Mapping[str, str]], who: str = "rank") -> list[tuple[str, str]]:
    """(name, which ranks say what) of everything that ranks have otherwise, by what each rank tells."""
    names = dict.fromkeys(name for said in told.values() for name in said)
    return [
        (name, by_value(held, who)) for name in names if len(set((held := _held(told, name)).values())) > 1
    ]


def by_value(held: Mapping[int, str], who: str = "rank") -> str:
    """Ranks by what they have, such as `rank 0-2: 0.1; rank 3: 0.2`."""
    ranks = by_key((value, rank) for rank, value in held.items())
    return "; ".join(f"{who} {number_ranges(those)}: {value}" for value, those in ranks.items())


def files_digest(files: Sequence[Path]) -> str:
    """Sizes and contents of files, of large ones their ends and samples between."""
    found = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        found.update(f"{size} ".encode())
        with path.open("rb") as file:
            if size <= READ_WHOLE_BYTES:
                found.update(file.read())
                continue
            for number in range(SAMPLED + 1):
                file.seek((size - SAMPLE_BYTES) * number // SAMPLED)
                found.update(file.read(SAMPLE_BYTES))
    return _short(found.hexdigest())


def _held(told: Mapping[int, Mapping[str, str]], name: str) -> dict[int, str]:
    return {rank: said[name] for rank, said in told.items() if name in said}


def _short(digest: str) -> str:
    return digest[:SHOWN_HASH]
