"""The nodes of a SLURM job, from the variables that SLURM sets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..base.limits import MOST_DEVICES, beyond
from ..errors import ClusterError
from .check import check_cluster
from .cluster import ClusterSpec, DeviceSpec, NodeSpec
from .node_names import TooManyNodes, node_names

NODES, OWN_INDEX = "SLURM_JOB_NODELIST", "SLURM_NODEID"
GPUS, TASKS = "SLURM_GPUS_PER_NODE", "SLURM_TASKS_PER_NODE"

PER_NODE_GPUS = re.compile(r"(?:[^:,]+:)?(\d{1,18})", re.ASCII)
PER_NODE_TASKS = re.compile(r"(\d{1,18})(?:\(x(\d{1,18})\))?", re.ASCII)

FIX = "give the machines with --hosts FILE"


def is_in_job(environment: Mapping[str, str]) -> bool:
    """Whether this process belongs to a SLURM job."""
    return NODES in environment


def job_nodes(environment: Mapping[str, str]) -> ClusterSpec:
    """The job's nodes in SLURM's order, each with as many devices as it has GPUs, else tasks."""
    addresses = expand_nodes(environment[NODES])
    slots = _slots(environment, len(addresses))
    nodes = zip(addresses, slots, strict=True)
    cluster = ClusterSpec(tuple(NodeSpec(address, (DeviceSpec(),) * count) for address, count in nodes))
    check_cluster(cluster, NODES)
    return cluster


def own_address(environment: Mapping[str, str]) -> str:
    """The address of the node that this process runs on."""
    addresses = expand_nodes(environment[NODES])
    index = environment.get(OWN_INDEX, "")
    if not index.isdecimal() or int(index) >= len(addresses):
        raise ClusterError(
            "SLURM doesn't say which node this is",
            details=[(OWN_INDEX, index or "not set"), (NODES, environment[NODES])],
            rule=f"{OWN_INDEX} is an index into {NODES}",
            fix="run this under srun, with one task on each node",
        )
    return addresses[int(index)]


def expand_nodes(text: str) -> list[str]:
    """`gpu[01-03,7],login` to its names, in order."""
    try:
        return node_names(text)
    except TooManyNodes as error:
        raise _too_many(NODES, text, str(error)) from None
    except ValueError as error:
        what = "the list of SLURM's nodes is not understood"
        raise ClusterError(what, details=[(NODES, text)], rule=str(error), fix=FIX) from None


def _check_count(name: str, text: str, count: int) -> None:
    rule = beyond("nodes or ranks", count, MOST_DEVICES)
    if rule:
        raise _too_many(name, text, rule)


def _too_many(name: str, text: str, rule: str) -> ClusterError:
    return ClusterError(
        "SLURM names more than a job can have", details=[(name, text[:80])], rule=rule, fix=FIX
    )


def _slots(environment: Mapping[str, str], nodes: int) -> list[int]:
    gpus = PER_NODE_GPUS.fullmatch(environment.get(GPUS, ""))
    if gpus is not None:
        _check_count(GPUS, gpus[0], int(gpus[1]) * nodes)
        return [int(gpus[1])] * nodes
    counts: list[int] = []
    for part in environment.get(TASKS, "").split(","):
        count = PER_NODE_TASKS.fullmatch(part)
        if count is not None:
            _check_count(TASKS, part, max(1, int(count[1])) * int(count[2] or 1))
        counts += [int(count[1])] * int(count[2] or 1) if count else []
    if len(counts) != nodes:
        raise ClusterError(
            "SLURM doesn't say how many ranks each node takes",
            details=[(name, environment.get(name, "not set")) for name in (NODES, GPUS, TASKS)],
            rule=f"{GPUS} is a count, or {TASKS} has a count for each node, as in 2(x3),1",
            fix=FIX,
        )
    return counts
