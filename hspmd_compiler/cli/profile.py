"""`hspmd profile`: measures this machine and the links between ranks, writes a calibrated cluster file."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.devices import DeviceKind
from ..base.limits import MOST_DEVICES
from ..errors import OptionError
from .command import Command, add_json

if TYPE_CHECKING:
    from ..profiling.profile import OnRecord

MOST_THREADS = 1 << 10


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument("-o", "--out", type=Path, default=Path("cluster.yaml"), metavar="C.yaml")
    parser.add_argument("--cluster", type=Path, metavar="IN.yaml", help="calibrate this one, as described")
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks of this machine (default: 4, or GPUs)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="torch threads per rank")
    parser.add_argument(
        "--device",
        choices=[kind.value for kind in DeviceKind],
        default=DeviceKind.CPU.value,
        help="what the ranks compute on (default: cpu)",
    )
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repetitions")
    add_json(parser)


def run(args: Namespace) -> int:
    """Measures; what came out is shown in short."""
    _check(args)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    from ..cluster.read import read_cluster
    from ..profiling.profile import ProfileRequest, profile
    from ..runtime.saved.weights_file import check_writable
    from ..verify.shape.fit import check_rank

    check_writable(args.out, "--out")
    given = None if args.cluster is None else read_cluster(args.cluster)
    device = DeviceKind(args.device)
    request = ProfileRequest(args.out, device, args.ranks, args.quick, args.threads, given, check_rank)
    with _shown(args.json) as show:
        profile(request, show)
    return 0


def _check(args: Namespace) -> None:
    counts = (("--ranks", args.ranks, MOST_DEVICES), ("--threads", args.threads, MOST_THREADS))
    bad = [
        (name, f"{value}: a whole number from 1 to {most:,}")
        for name, value, most in counts
        if value is not None and not 1 <= value <= most
    ]
    if bad:
        raise OptionError("the profile can't be made as asked", details=bad)


@contextmanager
def _shown(as_json: bool) -> Iterator[OnRecord]:
    """Shows records: JSON lines, a bar at a terminal, else a line each; the summary at the end."""
    if as_json:
        yield lambda record: print(json.dumps(record), flush=True)
    elif sys.stdout.isatty():
        with _bar() as show:
            yield show
    else:
        yield _line


def _line(record: Mapping[str, object]) -> None:
    lines = record.get("summary")
    told = lines if isinstance(lines, list) else [record.get("progress")]
    print(*told, sep="\n", flush=True)


@contextmanager
def _bar() -> Iterator[OnRecord]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    progress = Progress(BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    task = progress.add_task("", total=None)

    def show(record: Mapping[str, object]) -> None:
        if "progress" in record:
            progress.start()  # now: no thread runs before the ranks are forked
            done, of = (float(str(record[key])) for key in ("done", "of"))
            progress.update(task, description=str(record["progress"]), completed=done, total=of)
            return
        progress.stop()
        _line(record)

    try:
        yield show
    finally:
        progress.stop()


COMMAND = Command("profile", "measure this machine and its links, write a calibrated cluster", add_flags, run)
