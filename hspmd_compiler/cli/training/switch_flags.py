"""Flags of `hspmd run`: which strategy of several runs when."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING

from ...base.quantities import BYTE_COUNT
from ...program.sized.sizes import Count

if TYPE_CHECKING:
    from ...artifact.bundle import Bundle
    from ...artifact.store import ProgramHead
    from ...runtime.engine import Engine
    from ...runtime.start.rank_process import Emit

SWITCHED, UNREACHED = "switched", "unreached"
"""Records: a switch that was made; switches that were not, and the steps that the run took."""
MOST_DIGITS = 15
ONE_PROGRAM = ("--trace", "--pace")
"""Flags that look at the instructions of one program."""


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--start", metavar="NAME", help="the strategy of several to begin with (default: the first)"
    )
    parser.add_argument(
        "--switch-at",
        type=_switches,
        default={},
        metavar="STEP:NAME,...",
        help="go on under another strategy: 10:B,20:A takes step 10 and on under B, 20 and on under A",
    )
    parser.add_argument(
        "--switch-round",
        type=_size,
        metavar="SIZE",
        help="messages that a rank sends and gets at a time in a switch (default: 64MiB)",
    )


def check(args: Namespace) -> list[tuple[str, str]]:
    """What is wrong with them, as (flag, text)."""
    from ...artifact.bundle import read_bundle
    from ...artifact.bundle_paths import is_bundle
    from ...artifact.checked_files import check_directory

    if isinstance(args.switch_at, str):
        return [("--switch-at", text) for text in _malformed(args.switch_at)]
    given = (("--start", args.start), ("--switch-at", args.switch_at), ("--switch-round", args.switch_round))
    if any(value for _, value in given):
        check_directory(args.directory)
    if not is_bundle(args.directory):
        text = f"{args.directory} holds one strategy: compile several, by --strategy A --strategy B"
        return [(flag, text) for flag, value in given if value]
    bundle = read_bundle(args.directory)
    names = list(bundle.strategies)
    used = [("--start", args.start)] if args.start is not None else []
    used += [("--switch-at", f"{step}:{name}") for step, name in args.switch_at.items()]
    bad = [
        (flag, f"{text}: the strategies are {', '.join(names)}")
        for flag, text in used
        if text.rpartition(":")[2] not in names
    ]
    for problems in () if bad else (_to_itself, _without_plan, _of_other_batches):
        bad += problems(bundle, args)
    if not bad:  # a damaged plan is told before the first step, too
        for source, target in dict.fromkeys((source, target) for _, source, target in _hops(bundle, args)):
            bundle.plan(source, target)
    bad += _in_vain(args)
    single = f"looks at one program: run {args.directory / names[0]}, or another folder of it"
    return bad + [(flag, single) for flag in ONE_PROGRAM if getattr(args, flag[2:]) is not None]


def _to_itself(bundle: Bundle, args: Namespace) -> Iterator[tuple[str, str]]:
    for step, source, target in _hops(bundle, args):
        if source == target:
            yield "--switch-at", f"{step}:{target}: the run is under {target} then already"


def _without_plan(bundle: Bundle, args: Namespace) -> Iterator[tuple[str, str]]:
    planned = {(each.source, each.target) for each in bundle.listing.plans}
    for step, source, target in _hops(bundle, args):
        if source != target and (source, target) not in planned:
            told = ", ".join(f"{one}:{other}" for one, other in sorted(planned)) or "none"
            yield "--switch-at", f"{step}:{target}: from {source} there is no plan; there are {told}"


def _of_other_batches(bundle: Bundle, args: Namespace) -> Iterator[tuple[str, str]]:
    """Switches between strategies that take unlike batches, of which the data has one kind only."""
    for step, source, target in _hops(bundle, args):
        before, after = (bundle.head(name).program for name in (source, target))
        if _amount(before) != _amount(after):
            what = f"takes {_amount(after)} a step, {source} takes {_amount(before)}"
        elif _one(before) != _one(after):
            what = f"takes inputs of other shapes or types than {source}"
        else:
            continue
        yield "--switch-at", f"{step}:{target}: {what}; a run has one kind of batches"


def _amount(program: ProgramHead) -> str:
    """What a batch has."""
    if program.sizes is None:
        return f"{program.batch} samples"
    return "packed rows" if program.sizes.unit is Count.TOKENS else "any number of samples"


def _one(program: ProgramHead) -> dict[str, tuple[tuple[int, ...], str]]:
    """What each sample, or token, has of an input."""
    counted = 0 if program.sizes is None else 1 + (program.sizes.unit is Count.TOKENS)
    return {name: (shape[counted:], dtype) for name, (shape, dtype) in program.inputs.items()}


def _hops(bundle: Bundle, args: Namespace) -> Iterator[tuple[int, str, str]]:
    """(step, source, target) of each switch."""
    names = [args.start or next(iter(bundle.strategies)), *args.switch_at.values()]
    for (step, target), (source, _) in zip(args.switch_at.items(), pairwise(names), strict=True):
        yield step, source, target


def _in_vain(args: Namespace) -> Iterator[tuple[str, str]]:
    """Switches behind the last step, where it is known; a run that is resumed tells of them at its end."""
    if args.steps is None or args.resume is not None:
        return
    for step, name in args.switch_at.items():
        if step > args.steps:
            yield "--switch-at", f"{step}:{name}: the run ends after step {args.steps}"


def alike(args: Namespace) -> dict[str, str]:
    """What all ranks must be started with alike."""
    return {"--switch-at": str(args.switch_at)}


class PlannedSwitches:
    """The switches of a run; every rank has them. `emit` hears of each."""

    def __init__(self, engine: Engine, switches: Mapping[int, str], emit: Emit) -> None:
        self._engine = engine
        self._left = dict(switches)
        self._emit = emit
        self._first = engine.steps + 1

    def before_step(self, step: int) -> None:
        """Make the switch that is due before a step."""
        name = self._left.pop(step, None)
        if name is not None:
            self._emit({SWITCHED: asdict(self._engine.switch_to(name))})

    def tell_unreached(self) -> None:
        """Tell of switches that no step came to."""
        if self._left:
            taken = [self._first, self._engine.steps]
            self._emit({UNREACHED: [[step, name] for step, name in self._left.items()], "taken": taken})


def _switches(text: str) -> dict[int, str] | str:
    """The name by step; the text as it is where it can't be read, which `check` tells with all else."""
    if list(_malformed(text)):
        return text
    parts = (part.partition(":") for part in text.split(","))
    return {int(step): name for step, _, name in parts}


def _malformed(text: str) -> Iterator[str]:
    """Each part that is no step and a name, or doesn't come behind the one before."""
    last = 0
    for part in text.split(","):
        step, colon, name = part.partition(":")
        if not (colon and name and step.isdecimal() and len(step) <= MOST_DIGITS and int(step)):
            yield f"{part!r} is not STEP:NAME, a step from 1 on and a strategy, such as 10:B"
        elif int(step) <= last:
            yield f"{part!r} comes behind step {last}: steps ascend, each once"
        else:
            last = int(step)


def _size(text: str) -> int:
    try:
        return int(BYTE_COUNT.read(text))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a size such as 64MiB") from None
