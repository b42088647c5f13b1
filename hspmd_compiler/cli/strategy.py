"""`hspmd strategy`: expands strategies of published systems, writes them in other forms, draws them."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ..base.json_yaml import write_text
from ..errors import OptionError, StrategyError
from ..pages.sections import Cell, Listing, Section, Table, sections_to_json
from ..strategy.formats.annotation_json import Family, annotation_json
from ..strategy.formats.expanded import Choices, Entry, Expanded, Format
from ..strategy.formats.read import pick, read_entries
from ..strategy.strategy import Strategy
from ..strategy.write import TextForm, strategy_text, write_strategy
from .command import Command, add_json
from .show import show_json
from .strategy_drawing import SHARE, draw, share_text, sized_text

FILE_HELP = (
    "a strategy in any form: our JSON or YAML, or that of HSPMD, HexiScale, Hydraulis, HotSPa, FlagScale"
)


def add_flags(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    expand = actions.add_parser(
        "expand", help="read a strategy of any form and write ours", allow_abbrev=False
    )
    _add_reading_flags(expand)
    expand.add_argument("--to", choices=[form.value for form in TextForm], help="print it in this form")
    expand.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write it as JSON or YAML, by the suffix"
    )
    expand.add_argument(
        "--reference-json", type=Path, metavar="FILE", help="write HSPMD's annotation JSON of it"
    )
    expand.add_argument(
        "--family", choices=[family.value for family in Family], help="names of modules there; default llama"
    )
    expand.add_argument("--zero", action="store_true", help="ask for ZeRO")
    show = actions.add_parser("show", help="draw pipelines as rows, stages as boxes", allow_abbrev=False)
    _add_reading_flags(show)
    show.add_argument("--schedules", action="store_true", help="show each pipeline's schedule over time")
    add_json(show)


def _add_reading_flags(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help=FILE_HELP)
    parser.add_argument(
        "--format", choices=[form.value for form in Format], help="its form, where the file doesn't tell"
    )
    parser.add_argument("--id", metavar="ID", help="which strategy of a file that holds several")
    parser.add_argument(
        "--layers", type=int, metavar="N", help="layers of the model, where the form lacks them"
    )
    parser.add_argument(
        "--micro-batch-size", type=int, metavar="N", help="samples of a micro-batch; default 1"
    )
    parser.add_argument(
        "--micro-batches", type=int, metavar="N", help="per pipeline; default its number of stages"
    )


def run(args: Namespace) -> int:
    """Reads and checks; then draws, or writes."""
    form, entries = read_entries(
        args.file, _choices(args), None if args.format is None else Format(args.format)
    )
    if args.action == "show":
        _show(entries if args.id is None else [pick(entries, args.id, str(args.file))], args)
        return 0
    expanded = pick(entries, args.id, str(args.file)).expand()
    _expand(_noted(expanded, form, args), args)
    return 0


def _choices(args: Namespace) -> Choices:
    named = {
        "--layers": args.layers,
        "--micro-batch-size": args.micro_batch_size,
        "--micro-batches": args.micro_batches,
    }
    bad = [(name, f"{value}: at least 1") for name, value in named.items() if value is not None and value < 1]
    if bad:
        raise OptionError(f"bad options: {', '.join(name for name, _ in bad)}", details=bad)
    return Choices(args.micro_batch_size, args.micro_batches, args.layers)


def _noted(expanded: Expanded, form: Format, args: Namespace) -> Expanded:
    """With notes on what the written strategy won't say."""
    notes = [f"read as {form.value}"] if form is not Format.STRATEGY else []
    strategy = expanded.strategy
    if args.zero and not strategy.zero:
        strategy = replace(strategy, zero=1)
    return replace(expanded, strategy=strategy, notes=(*notes, *expanded.notes))


def _expand(expanded: Expanded, args: Namespace) -> None:
    """Writes what is asked for, or prints our JSON; notes go to standard error."""
    strategy = expanded.strategy
    if args.reference_json is not None:
        form = annotation_json(expanded, Family(args.family or Family.LLAMA), args.zero)
        write_text(args.reference_json, json.dumps(form) + "\n", StrategyError)
    if args.output is not None:
        write_strategy(strategy, args.output)
    if args.to is not None or (args.output is None and args.reference_json is None):
        print(strategy_text(strategy, TextForm(args.to or TextForm.JSON.value)), end="")
    for note in expanded.notes:
        print(f"note: {note}", file=sys.stderr)


def _show(entries: list[Entry], args: Namespace) -> None:
    """Draws every entry, or prints them as JSON by their ids."""
    read = [(entry.id, entry.expand()) for entry in entries]
    if args.json:
        found = {name: sections_to_json(strategy_sections(one, args.schedules)) for name, one in read}
        show_json(found[""] if list(found) == [""] else found)
        return
    for index, (name, expanded) in enumerate(read):
        if index:
            print()
        draw(name, expanded)
        if args.schedules:
            for section in _schedule_sections(expanded.strategy):
                print(f"\n{section.to_text()}")


def strategy_sections(found: Expanded, schedules: bool) -> list[Section]:
    """The strategy as a whole, stage by stage, and the schedule of each pipeline where asked for."""
    strategy = found.strategy
    facts: list[tuple[Cell, ...]] = [
        ("ranks", strategy.world_size),
        ("layers", strategy.num_layers),
        *(
            (("global batch", strategy.global_batch), ("accumulation", strategy.accumulation))
            if strategy.sizes is None
            else (("sizes", sized_text(strategy.sizes)),)
        ),
        ("schedule", strategy.schedule_name),
        ("sequence parallel", strategy.sequence_parallel),
        ("ZeRO", strategy.zero),
        ("overrides", len(strategy.overrides)),
        *((("layouts", len(strategy.layouts)),) if strategy.layouts else ()),
        *((("context groups", len(strategy.context)),) if strategy.context else ()),
    ]
    taken = "micro-batches" if strategy.sizes is None else SHARE
    sections: list[Section] = [
        Table("strategy", strategy.name or "strategy", ("fact", "value"), tuple(facts)),
        Table("stages", "stages", (*STAGE_COLUMNS, taken), tuple(_stage_rows(strategy))),
    ]
    if schedules:
        sections += _schedule_sections(strategy)
    return [*sections, *([Listing("notes", "notes", found.notes)] if found.notes else [])]


def _schedule_sections(strategy: Strategy) -> Iterator[Listing]:
    from ..strategy.schedules.schedule_time import grid

    for index in range(len(strategy.pipelines)):
        lines = grid(strategy.schedule_of(index)).splitlines()
        yield Listing(f"schedule {index}", f"schedule of pipeline {index}", tuple(lines))


STAGE_COLUMNS = ("pipeline", "stage", "layers", "devices", "ranks", "shares")


def _stage_rows(strategy: Strategy) -> Iterator[tuple[Cell, ...]]:
    ranks = strategy.ranks()
    for index, pipeline in enumerate(strategy.pipelines):
        for number, stage in enumerate(pipeline.stages):
            yield (
                index,
                number,
                f"{stage.layers[0]}:{stage.layers[1]}",
                " ".join(map(str, stage.devices)),
                " ".join(str(ranks[device]) for device in stage.devices),
                "even" if stage.shares is None else " ".join(map(str, stage.shares)),
                share_text(pipeline, strategy)
                if strategy.sizes
                else " ".join(map(str, pipeline.micro_batches)),
            )


COMMAND = Command("strategy", "expand a published strategy, convert it, draw it", add_flags, run)
