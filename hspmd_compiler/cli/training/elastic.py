"""`hspmd run --elastic`: a launcher whose ranks go on without those that are lost."""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ...runtime.elastic.agent import Agent, Tell
from ...runtime.elastic.launcher import ElasticLauncher, ElasticLimits
from ...runtime.elastic.rank import live
from ...runtime.elastic.training import ElasticRun, ElasticTraining
from ...runtime.elastic.wake import GlooWake, NcclWake
from ...runtime.saved.checkpoint.load import newest
from ...runtime.start.opening import StartOptions
from ...runtime.start.rank_process import Record
from ...runtime.start.rendezvous import use_loopback
from .elastic_flags import SILENT_S
from .replay_flags import presences, trace_of
from .successors import Successors

SIGNALLED = 128
"""Exit code, beside the signal's number, as shells have it."""

MakeRun = Callable[[StartOptions, dict[int, int]], ElasticRun]


def run_elastic(
    args: Namespace,
    options: StartOptions,
    make_run: MakeRun,
    on_record: Callable[[Record], None],
) -> None:
    """Train to the end on whatever devices are there."""
    with _ending_in_order(), TemporaryDirectory(prefix="hspmd-elastic-") as scratch:
        successors = Successors(args.directory, Path(scratch), args.start, args.survive or 0)
        successors.read()
        devices: Sequence[int] = successors.devices
        trace = trace_of(args.replay, devices)
        run = make_run(options, {device: index for index, device in enumerate(devices)})
        limits = ElasticLimits(
            silent_s=args.elastic_silence or SILENT_S, grace_s=options.timeouts.transfer.total_seconds()
        )
        body = body_of(run, options.threads, successors.device_family)
        ElasticLauncher(
            body,
            successors.choose,
            devices if trace is None else trace.moments[0].present,
            on_record,
            limits,
            args.elastic_respawn or 0,
            () if trace is None else presences(trace),
            lambda steps: _newest(args.checkpoint, steps),
        ).run()


def body_of(run: ElasticRun, threads: int, family: str) -> Callable[[int, int, Tell], None]:
    """The life of a rank."""

    def body(id: int, control: int, tell: Tell) -> None:
        import torch

        torch.set_num_threads(threads)
        use_loopback()
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        agent = Agent(id, control, tell, GlooWake() if family == "cpu" else NcclWake())
        live(agent, ElasticTraining(agent, run))

    return body


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """A signal that asks this process to end is an exit, so that ranks and files do not stay behind."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(SIGNALLED + number)

    asking = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    for each in asking:
        signal.signal(each, leave)
    try:
        yield
    finally:
        for each in asking:
            signal.signal(each, signal.SIG_DFL)


def _newest(folder: Path | None, steps: int) -> str:
    found = None if folder is None else newest(folder, most_steps=steps)
    return "" if found is None else str(found)
