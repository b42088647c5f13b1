"""One compile, measured in this process, for compile_overhead.py.

    python benchmarks/compile_once.py MODEL LAYERS STRATEGY MODULES

MODULES: where it is there, the names of modules to import first; else it is written after the compile.
"""

from __future__ import annotations

import time

STARTED = time.process_time()

import importlib  # noqa: E402
import json  # noqa: E402
import resource  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from contextlib import suppress  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402

from hspmd_compiler import api  # noqa: E402
from hspmd_compiler.base.log import listening  # noqa: E402
from hspmd_compiler.models.models import load_model  # noqa: E402
from hspmd_compiler.strategy.formats.read import read_strategy  # noqa: E402

DEPTHS = (0, 1)
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"


class Phases:
    """CPU seconds and peak memory of every task of a compile, in the order in which they begin."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []
        self._open: list[tuple[dict[str, object], float]] = []
        self._peaks: list[int] = []

    def started(self, title: str, total: int | None) -> None:
        self._note_peak()
        row: dict[str, object] = {"name": title, "depth": len(self._open)}
        self.rows.append(row)
        self._peaks.append(0)
        self._open.append((row, time.process_time()))

    def advanced(self, title: str, done: int) -> None:
        pass

    def ended(self, title: str, seconds: float) -> None:
        end = time.process_time()
        self._note_peak()
        row, start = self._open.pop()
        row |= {"seconds": end - start, "peak": self._peaks.pop()}

    def _note_peak(self) -> None:
        """The peak since the last note counts for every open task."""
        peak = read_peak()
        self._peaks = [max(peak, known) for known in self._peaks]
        with suppress(OSError):
            CLEAR.write_text(RESET_PEAK)


def read_peak() -> int:
    """Bytes held at most since the last reset; where the system can't reset, since the start."""
    if STATUS.exists():
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(model: str, layers: str, strategy_file: Path, modules: Path) -> None:
    """Import, compile, save, and print what it took as JSON."""
    torch.set_num_threads(1)
    for name in json.loads(modules.read_text()) if modules.exists() else ():
        with suppress(Exception):
            importlib.import_module(name)
    imports = time.process_time() - STARTED
    strategy = read_strategy(strategy_file)
    phases = Phases()
    with tempfile.TemporaryDirectory() as folder, listening(phases):
        program = api.compile(load_model(model, {"layers": layers}), strategy=strategy)
        program.save(Path(folder) / "artifact", weights=False)
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    if not modules.exists():
        modules.write_text(json.dumps(sorted(sys.modules)))
    rows = [row for row in phases.rows if row["depth"] in DEPTHS]
    classes = len(program.artifact.program.classes)
    print(json.dumps({"imports": imports, "classes": classes, "size": size, "phases": rows}))


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(Path, sys.argv[3:]))
