"""A profile from start to end: programs compiled, ranks started, measured, and a cluster file written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch

from ..base.devices import DeviceKind
from ..cluster.calibration import Calibration
from ..cluster.cluster import ClusterSpec
from ..cluster.read import read_cluster, write_cluster
from ..errors import OptionError
from ..program.program import Program
from ..runtime.start.freed_memory import keep_freed_memory
from ..runtime.start.launch import fork_here
from ..runtime.start.rank_process import Emit
from ..runtime.start.rendezvous import RankPlace, Timeouts, connect, is_under_torchrun
from ..runtime.strategies import StrategyProgram
from .calibrated import Machine, calibrated, physical_bytes, this_machine, usable_cores
from .meeting import hosts_of, meeting_program
from .plan import MIB, ProfilePlan, group_shapes, plan_for
from .session import Session

PROGRESS, SUMMARY = "progress", "summary"
DEFAULT_RANKS = 4
MEMORY_SHARE = 8
"""A message takes at most one part in so many of a rank's memory: both ends hold it twice."""
Check = Callable[[Program, int], None]
OnRecord = Callable[[Mapping[str, object]], None]


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """What is asked for. ranks: of this machine, None for as many as fit. given: describes the cluster.

    check: what a rank's program goes through before it meets the others, for what it loads belongs to a rank.
    """

    out: Path
    device: DeviceKind
    ranks: int | None = None
    quick: bool = False
    threads: int = 1
    given: ClusterSpec | None = None
    check: Check | None = None


def profile(request: ProfileRequest, on_record: OnRecord) -> None:
    """Measure, and write the calibrated cluster; progress and summary come to `on_record`.

    Under torchrun this process is one rank. Otherwise it forks the ranks of this machine.
    """
    torch.set_num_threads(request.threads)
    place = RankPlace.from_environment() if is_under_torchrun() else None
    count = place.world_size if place is not None else _ranks_here(request)
    plan = plan_for(request.device, request.quick, _most_message_bytes(request.device, count))
    if place is not None:
        quiet: OnRecord = lambda record: None  # noqa: E731
        _measure(request, plan, place, on_record if place.rank == 0 else quiet)
        if place.rank == 0:
            on_record({SUMMARY: [f"written: {request.out}"]})
        return
    lines: list[object] = []

    def told(record: Mapping[str, object]) -> None:
        """Progress, which has the trials before it; the summary waits for what they show."""
        if SUMMARY in record:
            lines.extend(cast(list[object], record[SUMMARY]))
        else:
            on_record({**record, "of": cast(int, record["of"]) + len(plan.trials)})
            done.append(cast(int, record["done"]))

    done = [0]
    fork_here(count, lambda at, emit: _measure(request, plan, at, emit), request.threads, told)
    if plan.trials:
        lines.append(_add_held_memory(request.out, plan, done[-1], on_record))
    on_record({SUMMARY: [*lines, f"written: {request.out}"]})


def _add_held_memory(path: Path, plan: ProfilePlan, done: int, on_record: OnRecord) -> str:
    """Trial runs, whose programs are compiled here, when the memory of ranks is measured."""
    from .trial_runs import Held, fit_held, run_trial

    cluster = read_cluster(path)
    calibration = cluster.calibration
    assert calibration is not None, "it was written with one"
    found: list[Held] = []
    for number, trial in enumerate(plan.trials):
        text = f"a trial run of {trial.model.name}"
        on_record({PROGRESS: text, "done": done + number + 1, "of": done + len(plan.trials)})
        found += run_trial(trial)
    held = fit_held(found, calibration.platform_bytes)
    write_cluster(replace(cluster, calibration=replace(calibration, held=held)), path)
    parts = f"{held.fixed_bytes / MIB:.0f} MiB and {held.share:.0%} of theirs"
    return f"memory beyond tensors: {parts}, within {held.spread:.0%}"


def _measure(
    request: ProfileRequest,
    plan: ProfilePlan,
    place: RankPlace,
    emit: Emit,
) -> None:
    """One rank; rank 0 writes the file."""
    hosts = hosts_of(place.world_size)
    shapes = group_shapes(hosts)
    program = meeting_program(place.world_size, request.device.value, shapes)
    if request.check is not None:
        request.check(program, place.rank)
    connected = connect(place, {"": StrategyProgram.only(program, place.rank)}, {}, Timeouts())
    transport = connected.transport
    if transport.device.type == DeviceKind.CPU.value:
        keep_freed_memory()  # as ranks do that train

    def told(text: str, done: int, of: int) -> None:
        if transport.rank == 0:
            emit({PROGRESS: text, "done": done, "of": of})

    session = Session(transport, plan, hosts, shapes, usable_cores(), told)
    with torch.no_grad():
        measured = session.run()
    own = this_machine(transport.device, hosts.count(hosts[place.rank]))
    machines = cast(list[Machine], transport.gather_objects(own))
    if transport.rank == 0:
        firsts = [machines[hosts.index(host)] for host in dict.fromkeys(hosts)]
        cluster = calibrated(measured, firsts, request.threads, request.given)
        write_cluster(cluster, request.out)
        emit({SUMMARY: summary(cluster)})
    session.end()
    transport.close()


def summary(cluster: ClusterSpec) -> list[str]:
    """What was measured, for people."""
    calibration = cluster.calibration
    assert calibration is not None, "it was made with one"
    return [
        f"{calibration.device}, {calibration.threads} thread{'s' * (calibration.threads != 1)},"
        f" torch {calibration.torch}, {calibration.date}",
        *_operator_lines(calibration),
        *_message_lines(calibration),
        *_at_once_lines(calibration),
        f"instruction {calibration.instruction_s * 1e6:.1f} us;"
        f" platform {calibration.platform_bytes / MIB:.0f} MiB; sends {calibration.sends}",
    ]


def _operator_lines(calibration: Calibration) -> list[str]:
    lines = []
    for name, of in sorted(calibration.operators.items()):
        rates = [f"{1e-9 / of.per_flop_s:.1f} Gflop/s"] if of.per_flop_s else []
        rates += [f"{1e-9 / of.per_byte_s:.1f} GB/s"] if of.per_byte_s else []
        text = " and ".join(rates) or "no part by size"
        lines.append(f"{name}: {of.fixed_s * 1e6:.1f} us, {text}, within {of.spread:.0%}")
    return lines


def _message_lines(calibration: Calibration) -> list[str]:
    both = {**calibration.exchange, **calibration.collectives}
    return [
        f"{name}: {of.fixed_s * 1e6:.0f} us"
        + (f", {1e-9 / of.per_byte_s:.2f} GB/s" if of.per_byte_s else "")
        + f", within {of.spread:.0%}"
        for name, of in both.items()
    ]


def _at_once_lines(calibration: Calibration) -> list[str]:
    if not calibration.at_once:
        return []
    told = [
        f"{each.ranks}: {each.factor:.3f} times, within {each.spread:.1%}" for each in calibration.at_once
    ]
    return [f"ranks that compute at once: {'; '.join(told)}"]


def _ranks_here(request: ProfileRequest) -> int:
    if request.device is DeviceKind.CPU:
        return request.ranks or DEFAULT_RANKS
    found = torch.cuda.device_count()
    if not found or (request.ranks or 0) > found:
        raise OptionError(
            f"a profile of {request.ranks or 1} CUDA devices can't be made here",
            details=[("devices", str(found))],
            fix="--device cpu, or fewer --ranks",
        )
    return request.ranks or found


def _most_message_bytes(device: DeviceKind, ranks: int) -> int:
    if device is DeviceKind.CPU:
        return physical_bytes() // (MEMORY_SHARE * ranks)
    return 1 << 40  # any device that trains holds the largest message
