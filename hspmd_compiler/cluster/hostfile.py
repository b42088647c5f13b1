"""Hostfiles: a node a line, `address slots=N`, as mpirun, DeepSpeed and HexiScale read them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from ..base.bad_values import Problem
from ..base.limits import MOST_DEVICES, beyond
from ..base.plain_content import long_text
from .check import find_cluster_problems
from .cluster import CLUSTER, ClusterSpec, DeviceSpec, NodeSpec

LINE = 'address slots=N, and perhaps kind="cuda NAME"'
KEYS = ("slots", "kind")
SLOTS = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


def read_hostfile(text: str, at: str = "") -> ClusterSpec:
    """The nodes of a hostfile in its order; one ClusterError lists every bad line."""
    CLUSTER.refuse(long_text(text), at)
    problems: list[Problem] = []
    nodes: list[NodeSpec] = []
    places: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = _words(line)
        if words:
            places.append(f"line {number}")
            nodes.append(_node(words, places[-1], problems))
    cluster = ClusterSpec(tuple(nodes))
    if not nodes:
        problems.append(Problem("hosts", f"empty: a line is {LINE}"))
    problems += [_in_lines(problem, places) for problem in find_cluster_problems(cluster) if nodes]
    CLUSTER.refuse(problems, at)
    return cluster


def _words(line: str) -> list[str]:
    """The words of a line; none in a comment. A quote that is never closed is part of its word."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()


def _node(words: list[str], place: str, problems: list[Problem]) -> NodeSpec:
    address, *rest = words
    if "=" in address:
        problems.append(Problem(place, f"{address}: the address comes first; a line is {LINE}"))
    pairs = [word.partition("=") for word in rest]
    given = {key: value for key, _, value in pairs}
    problems += (Problem(place, text) for text in _pair_problems(pairs, given))
    slots = given.get("slots", "")
    count = int(slots) if SLOTS.fullmatch(slots) else 1
    rule = beyond("slots", count, MOST_DEVICES)
    if rule:
        problems.append(Problem(place, rule))
        count = 1
    return NodeSpec(address, (DeviceSpec(given.get("kind")),) * count)


def _pair_problems(pairs: list[tuple[str, str, str]], given: dict[str, str]) -> Iterator[str]:
    for key, sign, value in pairs:
        if key not in KEYS or not sign:
            yield f"{key}{sign}{value}: not understood; a line is {LINE}"
    if len(given) != len(pairs):
        yield "a key stands twice: each once"
    if "slots" not in given:
        yield f"slots is missing; a line is {LINE}"
    elif not SLOTS.fullmatch(given["slots"]):
        yield f"slots={given['slots'][:40]}: a whole number above 0"


def _in_lines(problem: Problem, places: list[str]) -> Problem:
    """A problem of a node as one of its line."""
    index = re.match(r"nodes\[(\d+)\]", problem.path)
    return problem if index is None else Problem(places[int(index[1])], problem.text)
