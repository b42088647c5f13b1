"""Timelines as Chrome's trace JSON, which Perfetto opens too; read as data from anybody.

An event of phase X is a span, C a point of memory, M a name; pid 0 holds what is estimated, pid 1 what is
measured; tid is the rank. Times are whole nanoseconds, written in microseconds. Other phases are passed over.
Members of a meeting name the group beside the events, once for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from ..errors import TimelineError
from .bad_values import Problem, ProblemSubject
from .forms import problems_of, ranged_numbers
from .json_yaml import read_json, write_text
from .limits import MOST_DEVICES
from .log import logger
from .number_ranges import number_ranges
from .plain_content import text_of
from .timeline import MemoryPoint, Span, SpanKind, Timeline
from .typed import Misfit, Misfits, ValueRule, Wanted, read

T = TypeVar("T")

SOURCES = ("estimated", "measured")
"""By pid."""
TRACE_BYTES = 1 << 27
TRACE_VALUES = 1 << 24
MOST_EVENTS = 1 << 20
MOST_MEMBERS = 1 << 22
"""Ranks in all groups."""
FEW = 8
"""Ranks of an exchange that a span lists itself."""
LONGEST_NAME = 400
LATEST_US = 1 << 43
"""A hundred days: in nanoseconds still a whole number that a float holds."""
AT_ONCE = 4096
SHOWN = 20
PROCESS, THREAD = NAMES = ("process_name", "thread_name")
TRACE = ProblemSubject(
    "a trace", TimelineError, "give a file that --trace of `hspmd estimate` or of `hspmd run` wrote", SHOWN
)

Pid: TypeAlias = Annotated[Literal[0, 1], Wanted("0 for estimated, or 1 for measured")]
Rank: TypeAlias = Annotated[
    int, ValueRule(lambda rank: 0 <= rank < MOST_DEVICES, f"a rank from 0 to {MOST_DEVICES - 1}")
]
Microseconds: TypeAlias = Annotated[
    float, ValueRule(lambda us: 0 <= us <= LATEST_US, f"microseconds from 0 to {LATEST_US:,}")
]
Place: TypeAlias = Annotated[int, ValueRule(lambda place: place >= -1, "a whole number of at least -1")]
Bytes: TypeAlias = Annotated[int, ValueRule(lambda size: size >= 0, "a whole number of at least 0")]
Name: TypeAlias = Annotated[
    str, ValueRule(lambda name: len(name) <= LONGEST_NAME, f"a text of at most {LONGEST_NAME} characters")
]


@dataclass(frozen=True, slots=True)
class SpanArguments:
    """What Chrome doesn't know of a span. beside: it goes on while its rank does something else."""

    position: Place = -1
    mb: Place = -1
    peers: tuple[Rank, ...] = ()
    group: Annotated[int, ValueRule(lambda place: place >= 0, "the number of a group")] | None = None
    bytes: Bytes = 0
    beside: bool = False


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """A span. name: its label, or its kind where it has none."""

    ph: Literal["X"]
    name: Name
    cat: SpanKind
    pid: Pid
    tid: Rank
    ts: Microseconds
    dur: Microseconds
    args: SpanArguments = SpanArguments()


@dataclass(frozen=True, slots=True)
class MemoryArguments:
    bytes: Bytes


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """A point of memory. name: Chrome draws one curve for each."""

    ph: Literal["C"]
    name: Name
    pid: Pid
    tid: Rank
    ts: Microseconds
    args: MemoryArguments


@dataclass(frozen=True, slots=True)
class NameArguments:
    name: Name


@dataclass(frozen=True, slots=True)
class NameEvent:
    """What a rank or a process is called."""

    ph: Literal["M"]
    name: str
    pid: Pid
    args: NameArguments
    tid: Rank = 0


def write_trace(timelines: Timeline | Sequence[Timeline], path: Path) -> None:
    """Write a file that reads back as these timelines, at most one of each source, to the nanosecond."""
    given = [timelines] if isinstance(timelines, Timeline) else timelines
    groups = TraceGroups()
    events = [
        json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in _events(given, groups)
    ]
    head = f'{{"displayTimeUnit":"ms","groups":{json.dumps(groups.texts)},"traceEvents":[\n'
    text = head + ",\n".join(events) + "\n]}\n"
    if len(text) > TRACE_BYTES or len(events) > MOST_EVENTS:
        told = "%s has %d events in %d MiB: Perfetto opens it, --against does not read more than %d in %d MiB"
        logger.warning(told, path, len(events), len(text) >> 20, MOST_EVENTS, TRACE_BYTES >> 20)
    write_text(path, text, TimelineError)


@dataclass(slots=True)
class TraceGroups:
    """Groups of more ranks than a span lists itself, as texts such as `0-3,8`, and their numbers."""

    texts: list[str] = field(default_factory=list)
    numbers: dict[tuple[int, ...], int] = field(default_factory=dict)
    known: dict[int, int] = field(default_factory=dict)

    def number(self, group: tuple[int, ...]) -> int:
        """Of a group; a tuple that all members share is looked at once."""
        if id(group) not in self.known:
            if group not in self.numbers:
                self.numbers[group] = len(self.texts)
                self.texts.append(number_ranges(group))
            self.known[id(group)] = self.numbers[group]
        return self.known[id(group)]


def _events(timelines: Iterable[Timeline], groups: TraceGroups) -> Iterator[dict[str, Any]]:
    for line in timelines:
        pid = SOURCES.index(line.source)
        yield {"ph": "M", "name": PROCESS, "pid": pid, "args": {"name": line.source}}
        for rank, label in sorted(line.labels.items()):
            label = label[:LONGEST_NAME]
            yield {"ph": "M", "name": THREAD, "pid": pid, "tid": rank, "args": {"name": label}}
        yield from (_span_event(pid, span, groups) for span in line.spans)
        yield from (_span_event(pid, span, groups, beside=True) for span in line.beside)
        for point in line.memory:
            where = {"pid": pid, "tid": point.rank, "ts": nanoseconds(point.time_s) / 1000}
            name = f"memory of rank {point.rank}"
            yield {"ph": "C", "name": name, **where, "args": {"bytes": point.bytes}}


def _span_event(pid: int, span: Span, groups: TraceGroups, beside: bool = False) -> dict[str, Any]:
    start, end = nanoseconds(span.start_s), nanoseconds(span.end_s)
    few = len(span.group) <= FEW
    ranks = {"peers": list(span.group)} if few else {"group": groups.number(span.group)}
    args = {"position": span.position, "mb": span.mb, **ranks, "bytes": span.size_bytes, "beside": beside}
    unsaid = {"position": -1, "mb": -1, "peers": [], "group": None, "bytes": 0, "beside": False}
    return {
        "ph": "X",
        "name": span.label[:LONGEST_NAME] or span.kind.value,
        "cat": span.kind.value,
        "pid": pid,
        "tid": span.rank,
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "args": {key: value for key, value in args.items() if value != unsaid[key]},
    }


def nanoseconds(seconds: float) -> int:
    """The nearest whole number."""
    return round(seconds * 1e9)


def read_trace(path: Path) -> tuple[Timeline, ...]:
    """The timelines of a file, the estimated one first; one TimelineError lists its bad values."""
    try:
        text = text_of(path, TRACE_BYTES)
    except OSError as error:
        raise TimelineError(f"can't read the trace {path}: {error.strerror}", fix=TRACE.fix) from error
    except UnicodeDecodeError as error:
        what = f"the trace {path} isn't a text: byte {error.start} is not UTF-8"
        raise TimelineError(what, fix=TRACE.fix) from error
    return _timelines(read_json(text, TRACE, str(path), most_values=TRACE_VALUES), str(path))


def read_timeline(path: Path, source: str) -> Timeline:
    """The timeline of this source in a file, or a TimelineError that says what it holds."""
    found = {line.source: line for line in read_trace(path)}
    if source not in found:
        raise TimelineError(
            f"{path} has no {source} timeline",
            details=[("it has", ", ".join(found) or "no span")],
            fix=f"--trace of `hspmd {'run' if source == 'measured' else 'estimate'}` writes one",
        )
    return found[source]


def _timelines(content: object, at: str) -> tuple[Timeline, ...]:
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        TRACE.refuse([Problem("traceEvents", "missing: a list of events")], at)
        return ()
    if len(events) > MOST_EVENTS:
        TRACE.refuse([Problem("traceEvents", f"{len(events):,} events: at most {MOST_EVENTS:,}")], at)
    problems = [
        Problem(f"traceEvents[{index}]", "an event is an object of keys and values")
        for index, event in enumerate(events)
        if not isinstance(event, dict)
    ]
    groups = _groups(content.get("groups", []) if isinstance(content, dict) else [], problems)
    spans = _read(SpanEvent, _of_phase(events, "X"), problems)
    named = {span.args.group for span in spans if span.args.group is not None}
    unknown = sorted(number for number in named if number >= len(groups))
    problems += [Problem("traceEvents", f"there is no group {number}") for number in unknown]
    memory = _read(MemoryEvent, _of_phase(events, "C"), problems)
    names = _read(NameEvent, _of_phase(events, "M", NAMES), problems)
    TRACE.refuse(problems, at)
    made = (_timeline(pid, spans, memory, names, groups) for pid in range(len(SOURCES)))
    return tuple(line for line in made if line.spans or line.memory)


def _groups(given: object, problems: list[Problem]) -> list[tuple[int, ...]]:
    """Of texts of ranks; as many as there are, but no more ranks than a trace may have."""
    found: list[tuple[int, ...]] = []
    members = 0
    if not isinstance(given, list):
        problems.append(Problem("groups", "a list of texts of ranks"))
        return found
    for number, text in enumerate(given):
        try:
            group = ranged_numbers(text) if isinstance(text, str) else ()
            members += len(group)
            if not group or max(group) >= MOST_DEVICES or members > MOST_MEMBERS:
                raise ValueError(f"ranks below {MOST_DEVICES:,}, and at most {MOST_MEMBERS:,} in all groups")
        except ValueError as error:
            problems.append(Problem(f"groups[{number}]", f"{error}"))
            return found
        found.append(group)
    return found


def _of_phase(events: list[Any], phase: str, names: Collection[str] = ()) -> list[tuple[int, Any]]:
    """(index, event) of a phase; names: only those that are called so, where some are given."""
    return [
        (index, event)
        for index, event in enumerate(events)
        if isinstance(event, dict) and event.get("ph") == phase and (not names or event.get("name") in names)
    ]


def _read(kind: type[T], events: list[tuple[int, Any]], problems: list[Problem]) -> list[T]:
    """Some events at a time, until more is wrong than anybody reads."""
    found: list[T] = []
    for low in range(0, len(events), AT_ONCE):
        some = events[low : low + AT_ONCE]
        try:
            found += read(tuple[kind, ...], [event for _, event in some])  # type: ignore[valid-type]
        except Misfits as error:
            places = [_in_file(misfit, some) for misfit in error.found]
            problems += problems_of(Misfits(places), "traceEvents")
        if len(problems) > AT_ONCE:
            break
    return found


def _in_file(misfit: Misfit, events: list[tuple[int, Any]]) -> Misfit:
    first, *rest = misfit.place
    return replace(misfit, place=("traceEvents", events[int(first)][0], *rest))


def _timeline(
    pid: int,
    spans: list[SpanEvent],
    memory: list[MemoryEvent],
    names: list[NameEvent],
    groups: list[tuple[int, ...]],
) -> Timeline:
    return Timeline(
        SOURCES[pid],
        tuple(_span(event, groups) for event in spans if event.pid == pid and not event.args.beside),
        tuple(
            MemoryPoint(event.tid, _seconds(event.ts), event.args.bytes)
            for event in memory
            if event.pid == pid
        ),
        {event.tid: event.args.name for event in names if event.pid == pid and event.name == THREAD},
        tuple(_span(event, groups) for event in spans if event.pid == pid and event.args.beside),
    )


def _span(event: SpanEvent, groups: list[tuple[int, ...]]) -> Span:
    label = "" if event.name == event.cat.value else event.name
    args = event.args
    end_s = (_nanoseconds_of(event.ts) + _nanoseconds_of(event.dur)) / 1e9
    start_s = _seconds(event.ts)
    group = args.peers if args.group is None else groups[args.group]
    place = args.position, args.mb, group, args.bytes
    return Span(event.tid, start_s, end_s, event.cat, label, *place)


def _nanoseconds_of(microseconds: float) -> int:
    return round(microseconds * 1000)


def _seconds(microseconds: float) -> float:
    return _nanoseconds_of(microseconds) / 1e9
