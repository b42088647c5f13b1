"""Five real processes train the compiled program; rank 0 hands the results to this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.progress import Progress
from safetensors.torch import load_file, save_file
from trained import EARLY, Trained

from hspmd_compiler.runtime.batches.sources import text_source
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.saved.weights_file import save
from hspmd_compiler.runtime.start.launch import StartOptions, launch

LOSS = "loss"
GRADIENTS = "gradients.safetensors"
EARLY_PARAMETERS = "early_parameters.safetensors"
PARAMETERS = "parameters.safetensors"
SAVED = (GRADIENTS, EARLY_PARAMETERS, PARAMETERS)
Emit = Callable[[Mapping[str, object]], None]


def train_ranks(artifact: Path, text: Sequence[Path], steps: int, seed: int, bar: Progress) -> Trained:
    """Forks the ranks, which meet over gloo; the first that fails ends all with its error."""
    losses: list[float] = []
    with TemporaryDirectory() as folder, bar:
        results = Path(folder)
        moved = bar.add_task("steps", total=steps)

        def on_record(record: Mapping[str, object]) -> None:
            losses.append(float(str(record[LOSS])))
            bar.update(moved, advance=1, refresh=True)

        def on_every_rank(engine: Engine, emit: Emit) -> None:
            train_rank(engine, emit, text, steps, seed, results)

        launch(artifact, on_every_rank, StartOptions(seed=seed), on_record=on_record)
        return Trained(losses, *(load_file(results / name) for name in SAVED))


def train_rank(
    engine: Engine, emit: Emit, text: Sequence[Path], steps: int, seed: int, results: Path
) -> None:
    """What each process does: read its own rows, step, and help to gather what is compared."""
    data = text_source(engine, text, seed=seed)
    for batch in islice(data, steps):
        emit({LOSS: engine.step(batch, local=data.local)})
        if engine.steps == 1:
            gradients = engine.grads(everywhere=False)  # whole ones, on rank 0
            if engine.rank == 0:
                save_file(gradients, results / GRADIENTS)
        if engine.steps == EARLY:
            save(engine, results / EARLY_PARAMETERS)
    save(engine, results / PARAMETERS)
