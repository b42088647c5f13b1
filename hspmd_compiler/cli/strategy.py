"""`hspmd strategy`: checks a strategy without a model, shows it, and converts between its forms."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from ..artifact.sections import Cell, Listing, Section, Table
from ..errors import StrategyError
from ..strategy import Strategy
from ..strategy_lines import LaunchLines, looks_like_lines, read_lines
from ..strategy_read import TextForm, read_strategy, strategy_text, write_strategy
from .command import Command, add_json
from .show import show_sections


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="JSON, YAML or HSPMD's KEY=VALUE lines")
    parser.add_argument("--layers", type=int, metavar="N", help="layers of the model, for KEY=VALUE lines")
    parser.add_argument("--micro-batch-size", type=int, metavar="N", help="samples, for KEY=VALUE lines")
    parser.add_argument(
        "--to", choices=[form.value for form in TextForm], help="print the strategy in this form"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write it as JSON or YAML, by the suffix"
    )
    add_json(parser)


def run(args: Namespace) -> int:
    """Reads and checks; then prints, converts or writes."""
    found = _read(args)
    if args.output is not None:
        write_strategy(found.strategy, args.output)
    elif args.to is not None:
        print(strategy_text(found.strategy, TextForm(args.to)), end="")
    else:
        show_sections(strategy_sections(found), args.json)
    return 0


def _read(args: Namespace) -> LaunchLines:
    """A strategy of any form; forms other than launch lines have no remarks."""
    try:
        text = args.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise StrategyError(f"can't read {args.file}", details=[("reason", reason)]) from error
    if not text.lstrip().startswith("{") and looks_like_lines(text):
        return read_lines(
            text, num_layers=args.layers, micro_batch_size=args.micro_batch_size, at=str(args.file)
        )
    return LaunchLines(read_strategy(args.file), ())


def strategy_sections(found: LaunchLines) -> list[Section]:
    """The strategy as a whole, stage by stage, and the schedule of each pipeline."""
    from ..passes.schedule import build_schedule
    from ..passes.schedule_time import grid

    strategy = found.strategy
    facts: list[tuple[Cell, ...]] = [
        ("ranks", strategy.world_size),
        ("layers", strategy.num_layers),
        ("global batch", strategy.global_batch),
        ("accumulation", strategy.accumulation),
        ("schedule", strategy.schedule.value),
        ("sequence parallel", strategy.sequence_parallel),
        ("overrides", len(strategy.overrides)),
    ]
    sections: list[Section] = [
        Table("strategy", strategy.name or "strategy", ("fact", "value"), tuple(facts)),
        Table("stages", "stages", STAGE_COLUMNS, tuple(_stage_rows(strategy))),
    ]
    for index, pipeline in enumerate(strategy.pipelines):
        count = len(pipeline.micro_batches) * strategy.accumulation
        lines = grid(build_schedule(strategy.schedule, len(pipeline.stages), count)).splitlines()
        sections.append(Listing(f"schedule {index}", f"schedule of pipeline {index}", tuple(lines)))
    return [*sections, *([Listing("notes", "notes", found.notes)] if found.notes else [])]


STAGE_COLUMNS = ("pipeline", "stage", "layers", "devices", "ranks", "shares", "micro-batches")


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
                " ".join(map(str, pipeline.micro_batches)),
            )


COMMAND = Command("strategy", "check a strategy, show it, convert it", add_flags, run)
