"""`hspmd run`: trains an artifact on this host's ranks, or as one rank under torchrun."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from ..base.limits import MOST_DEVICES
from ..base.pace import Pace, check_pace, read_pace
from ..errors import OptionError
from ..options import Arithmetic
from .command import Command
from .training import checkpoint_flags, elastic_flags, replay_flags, switch_flags
from .training.job import begin, data_of, train_on, train_rank
from .training.training_view import view_for

if TYPE_CHECKING:
    from ..program.program import Program
    from ..runtime.start.opening import StartOptions
    from ..runtime.start.rendezvous import Timeouts

SEEDS = range(-(2**63), 2**63)
"""Those that torch's generators take and a tensor of integers holds."""
ALIKE = ("data", "pack", "steps", "epochs", "lr", "start_timeout", "timeout", "trace_steps")
WRITTEN = ("save", "save_state", "trace")
RANK_DIGITS = 9
MOST_THREADS = 1 << 10
MOST_TRACED = 100
SUBJECTS = (switch_flags, checkpoint_flags, elastic_flags, replay_flags)
LONGEST_WAIT = 30 * 24 * 3600.0  # a month


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="an artifact")
    parser.add_argument("--ranks", type=_ranks, metavar="R,R", help="start only these, e.g. 4,5,6 or 4-6")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", metavar="MODULE:FACTORY", help="makes an iterator of global batches")
    source.add_argument("--text", type=Path, nargs="+", metavar="FILE", help="train a language model on text")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="a HF tokenizer for --text (default: bytes)"
    )
    parser.add_argument(
        "--pack",
        type=int,
        metavar="TOKENS",
        help="rows of --text hold whole files, up to so many tokens",
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="steps that this run takes, behind --resume as many more"
    )
    parser.add_argument(
        "--epochs", type=int, metavar="N", help="epochs to train; with --steps, what ends first"
    )
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument(
        "--init",
        type=Path,
        metavar="FILE",
        help="safetensors with the model's names, by --save or from elsewhere",
    )
    begin.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="go on from what --save-state wrote, or from the newest in a --checkpoint folder; any strategy",
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the trained weights as safetensors")
    parser.add_argument(
        "--save-state", type=Path, metavar="FILE", help="write weights, optimizer and position in the data"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of initialisation, data order and random numbers (default: 0; --resume brings its own)",
    )
    parser.add_argument("--lr", type=float, help="learning rate (default: the artifact's)")
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="torch threads per rank (default: 1)"
    )
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="update with the bits of torch.optim's default, slower than by its fused kernels",
    )
    parser.add_argument(
        "--torch-compile",
        action="store_true",
        help="compile runs of operators by torch.compile: quicker steps that round otherwise, a longer start",
    )
    parser.add_argument(
        "--cuda-graphs",
        action="store_true",
        help="replay small runs of operators as CUDA graphs (not yet run on a GPU)",
    )
    parser.add_argument(
        "--start-timeout", type=float, metavar="SECONDS", help="for all ranks to come up (default: 120)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="for one message between ranks, or a silent rank (default: 300)",
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="time all ranks in a step, write what they did when"
    )
    parser.add_argument(
        "--trace-steps",
        type=int,
        default=1,
        metavar="N",
        help="time so many steps after the first two, write the one of median length (default: 1)",
    )
    parser.add_argument(
        "--pace", type=Path, metavar="FILE", help="seconds that instructions take at least, by rank"
    )
    parser.add_argument("--json", action="store_true", help="one JSON line per step")
    for flags in SUBJECTS:
        flags.add_flags(parser)


def run(args: Namespace) -> int:
    """Trains; the loss of each step is shown where rank 0 runs."""
    _check(args)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its warnings repeat what our errors say

    from ..runtime.saved.weights_file import check_writable
    from ..runtime.start.launch import launch
    from ..runtime.start.opening import StartOptions
    from ..runtime.switching.stages import ROUND_BYTES
    from ..verify.shape.fit import check_rank

    for flag, path in (("--save", args.save), ("--save-state", args.save_state), ("--trace", args.trace)):
        if path is not None:
            check_writable(path, flag)
    pace = Pace({}) if args.pace is None else read_pace(args.pace)

    def check(program: Program, rank: int) -> None:
        if program.sizes is not None and args.pace is not None:
            raise OptionError(
                "a pace is given for a program whose steps have other instructions each",
                details=[("--pace", str(args.pace))],
                rule="a pace has seconds of each instruction of a step, by its place",
                fix="leave it out, or compile for one size",
            )
        check_rank(program, rank)
        own = next(each for each in program.ranks if each.rank == rank)
        check_pace(pace, program.world_size, rank, len(own.instructions), str(args.pace))

    round_bytes = args.switch_round or ROUND_BYTES
    options = StartOptions(
        args.seed,
        args.init,
        _timeouts(args),
        args.threads,
        _flags(args),
        check,
        args.start,
        round_bytes,
        _arithmetic(args),
    )
    if args.elastic:
        _run_elastic(args, options, pace)
        return 0
    with view_for(args.json, args.steps) as view:
        launch(
            args.directory,
            lambda engine, emit: train_rank(engine, emit, args, pace),
            options,
            args.ranks,
            view.show,
        )
    return 0


def _run_elastic(args: Namespace, options: StartOptions, pace: Pace) -> None:
    from ..runtime.elastic.training import ElasticRun
    from ..runtime.saved.checkpoint.load import load_checkpoint
    from .training.elastic import run_elastic

    started = monotonic()

    def make_run(options: StartOptions, local_index: dict[int, int]) -> ElasticRun:
        return ElasticRun(
            options,
            lambda engine, alone: data_of(engine, args, alone),
            lambda engine, data, emit: begin(engine, data, emit, args),
            load_checkpoint,
            lambda engine, data, begun, emit, on_step: train_on(
                engine, data, emit, args, pace, begun, on_step, replay_flags.waits(args, engine, started)
            ),
            local_index,
        )

    with view_for(args.json, args.steps, draws=False) as view:
        run_elastic(args, options, make_run, view.show)


def _arithmetic(args: Namespace) -> Arithmetic:
    return Arithmetic(args.deterministic, args.torch_compile, args.cuda_graphs)


def _flags(args: Namespace) -> dict[str, str]:
    """What all ranks must be started with alike: files by what they hold, those to write by being named."""
    from ..runtime.start.same_start import files_digest

    flags = {f"--{name.replace('_', '-')}": str(getattr(args, name)) for name in ALIKE}
    flags |= {f"--{name.replace('_', '-')}": str(getattr(args, name) is not None) for name in WRITTEN}
    read = {
        "--text": args.text,
        "--resume": checkpoint_flags.resumed_files(args.resume),
        "--pace": args.pace and [args.pace],
    }
    if args.tokenizer is not None and args.tokenizer.is_dir():
        read["--tokenizer"] = sorted(path for path in args.tokenizer.iterdir() if path.is_file())
    flags |= {**checkpoint_flags.alike(args), **switch_flags.alike(args)}
    flags |= _arithmetic(args).flags
    return flags | {name: files_digest(files) if files else "None" for name, files in read.items()}


def _timeouts(args: Namespace) -> Timeouts:
    from ..runtime.start.rendezvous import Timeouts

    given = {"start": args.start_timeout, "transfer": args.timeout}
    return Timeouts(**{name: timedelta(seconds=value) for name, value in given.items() if value is not None})


def _check(args: Namespace) -> None:
    bad = [(f"--{name}", f"{value}: a whole number above 0") for name, value in _counts(args) if value < 1]
    if args.threads > MOST_THREADS:
        bad.append(("--threads", f"{args.threads}: at most {MOST_THREADS:,}"))
    if args.steps is None and args.epochs is None:
        bad.append(("--steps", "neither --steps nor --epochs is given"))
    if args.lr is not None and not 0 <= args.lr < float("inf"):
        bad.append(("--lr", f"{args.lr}: a number of 0 or more"))
    if args.seed not in SEEDS:
        bad.append(("--seed", f"{args.seed}: a whole number from -2**63 to 2**63 - 1"))
    if args.trace_steps > MOST_TRACED:
        bad.append(("--trace-steps", f"{args.trace_steps}: at most {MOST_TRACED}"))
    waits = (("--start-timeout", args.start_timeout), ("--timeout", args.timeout))
    bad += [
        (name, f"{value:g}: seconds above 0, at most {LONGEST_WAIT:.0f}")
        for name, value in waits
        if value is not None and not 0 < value <= LONGEST_WAIT
    ]
    if args.tokenizer is not None and args.text is None:
        bad.append(("--tokenizer", "goes with --text only"))
    if args.pack is not None and args.text is None:
        bad.append(("--pack", "goes with --text only"))
    bad += [("--text", f"{path}: no such file") for path in args.text or () if not path.is_file()]
    if args.init is not None and not args.init.is_file():
        bad.append(("--init", f"{args.init}: {_no_file(args.init)}"))
    bad += [each for flags in SUBJECTS for each in flags.check(args)]
    if bad:
        raise OptionError("the run can't start as asked", details=bad)


def _no_file(path: Path) -> str:
    if not path.is_dir():
        return "no such file"
    from ..runtime.saved.safetensors_file import file_in

    return f"a folder; {file_in(path)}"


def _counts(args: Namespace) -> list[tuple[str, int]]:
    named = [("steps", args.steps), ("epochs", args.epochs), ("threads", args.threads)]
    named += [("trace-steps", args.trace_steps), ("pack", args.pack)]
    return [(name, value) for name, value in named if value is not None]


def _ranks(text: str) -> list[int]:
    ranks: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()) or max(len(low), len(high)) > RANK_DIGITS:
            raise ArgumentTypeError(f"{text!r} is not a list of ranks such as 4,5,6 or 4-6")
        ranks += range(int(low), min(int(high or low), MOST_DEVICES) + 1)
    return ranks


COMMAND = Command(
    "run", "train an artifact: all local ranks, some of them, or one under torchrun", add_flags, run
)
