"""`hspmd run --elastic`: a launcher whose ranks go on without those that are lost."""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ...base.number_ranges import number_ranges
from ...errors import OptionError
from ...runtime.elastic.agent import Agent, Tell
from ...runtime.elastic.launcher import ElasticLauncher, ElasticLimits
from ...runtime.elastic.rank import live
from ...runtime.elastic.several.host_run import ElasticHost, meet_hosts, run_on_hosts
from ...runtime.elastic.several.links import LauncherPlace
from ...runtime.elastic.several.other_hosts import OtherHosts
from ...runtime.elastic.several.shared_files import SharedFiles
from ...runtime.elastic.training import ElasticRun, ElasticTraining
from ...runtime.elastic.wake import GlooWake, NcclWake
from ...runtime.saved.checkpoint.load import newest
from ...runtime.start.opening import StartOptions
from ...runtime.start.rank_process import Record
from ...runtime.start.rendezvous import LOCAL_HOST, use_loopback
from .elastic_flags import SECRET, SILENT_S, addresses_of
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
        hosts = None if args.elastic_hosts is None else _met(args, options, successors)
        own = devices if hosts is None else hosts.own_devices
        trace = trace_of(args.replay, devices)
        run = make_run(options, {device: index for index, device in enumerate(own)})
        limits = ElasticLimits(
            silent_s=args.elastic_silence or SILENT_S,
            start_s=options.timeouts.start.total_seconds(),
            grace_s=options.timeouts.transfer.total_seconds(),
        )
        is_local = hosts is None or all(host == LOCAL_HOST for host, _ in hosts.addresses)
        body = body_of(run, options.threads, successors.device_family, is_local)

        def decider(several: OtherHosts | None = None) -> ElasticLauncher:
            return ElasticLauncher(
                body,
                successors.choose,
                devices if trace is None else trace.moments[0].present,
                on_record,
                limits,
                args.elastic_respawn or 0,
                () if trace is None else presences(trace),
                None if args.checkpoint is None else lambda steps: _newest(args.checkpoint, steps),
                hosts=several,
            )

        if hosts is None:
            decider().run()
        else:
            run_on_hosts(hosts, body, limits, decider)


def _met(args: Namespace, options: StartOptions, successors: Successors) -> ElasticHost:
    """This host's part of a run on several, once all launchers have met."""
    addresses = addresses_of(args.elastic_hosts)
    assert addresses is not None, "checked"
    devices = successors.devices
    outside = sorted(set(args.ranks) - set(range(len(devices))))
    if outside:
        raise OptionError(
            "the run can't start as asked",
            details=[("--ranks", f"{number_ranges(outside)}: there are {len(devices)} ranks")],
        )
    place = LauncherPlace(
        args.elastic_hosts.split(",").index(args.elastic_here),
        addresses,
        tuple(devices[rank] for rank in sorted(set(args.ranks))),
        {"artifact": successors.digest, "--elastic-hosts": args.elastic_hosts, **options.flags},
        os.environ.get(SECRET, ""),
    )
    files = SharedFiles(args.directory, successors.scratch, args.checkpoint)
    host = meet_hosts(
        place, files, devices, args.elastic_silence or SILENT_S, options.timeouts.start.total_seconds()
    )
    successors.hosts = {device: number for number, own in host.mesh.devices.items() for device in own}
    return host


def body_of(
    run: ElasticRun, threads: int, family: str, is_local: bool = True
) -> Callable[[int, int, Tell], None]:
    """The life of a rank. is_local: all ranks are on this host."""

    def body(id: int, control: int, tell: Tell) -> None:
        import torch

        torch.set_num_threads(threads)
        if is_local:
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


def _newest(folder: Path, steps: int) -> str:
    found = newest(folder, most_steps=steps)
    return "" if found is None else str(found)
