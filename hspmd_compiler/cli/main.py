"""`hspmd`: finds the command, runs it, and turns errors into texts and exit codes."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from .. import __version__
from ..errors import OUR_FAILURE, HspmdError, InternalError, OptionError
from . import (
    cluster,
    compile,
    coverage,
    demo,
    estimate,
    inspect,
    launch,
    plan,
    profile,
    rules,
    run,
    strategy,
    trace,
    verify,
)
from .command import Command
from .hinting_parser import HintingParser

COMMANDS: tuple[Command, ...] = (
    trace.COMMAND,
    plan.COMMAND,
    compile.COMMAND,
    verify.COMMAND,
    run.COMMAND,
    launch.COMMAND,
    cluster.COMMAND,
    profile.COMMAND,
    estimate.COMMAND,
    inspect.COMMAND,
    strategy.COMMAND,
    rules.COMMAND,
    coverage.COMMAND,
    demo.COMMAND,
)

INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT)
TRACEBACK_SWITCH = "HSPMD_TRACEBACK"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. 0: done; 2: the user's mistake; 1: a proof that failed, or a failure of ours."""
    _open_streams()
    args = parser().parse_args(argv)
    if args.verbose:
        logging.basicConfig(level=logging.DEBUG, format="%(message)s")
    try:
        code: int = args.command.run(args)
        sys.stdout.flush()
    except HspmdError as error:
        print(error.text(), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough
        return 0
    except OSError as error:
        return _refused(error) if error.filename or error.errno in FULL else _report(error)
    except Exception as error:
        return _report(error)
    return code


def _open_streams() -> None:
    """Streams that the caller closed lead nowhere, and don't fail."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = HintingParser(
        prog="hspmd",
        description="Compiles a model and a strategy into one training program per rank, proves and runs it.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"hspmd {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = commands.add_parser(
            command.name, help=command.summary, description=command.summary, allow_abbrev=False
        )
        command.add_flags(sub)
        sub.add_argument("--verbose", action="store_true", help="log each phase and its time")
        sub.set_defaults(command=command)
    return top


def _refused(error: OSError) -> int:
    """Tells what the operating system doesn't allow: a file that can't be read, a disk that is full."""
    what = f"{error.filename!s} can't be used" if error.filename else "the output can't be written"
    told = OptionError(what, details=[("reason", error.strerror or str(error))])
    print(told.text(), file=sys.stderr)
    return told.exit_code


def _report(error: Exception) -> int:
    """Tells an unexpected failure as ours, in short."""
    if os.environ.get(TRACEBACK_SWITCH):
        traceback.print_exception(error)
        return OUR_FAILURE
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "hspmd_compiler" in frame.filename] or frames
    told = InternalError(
        f"{type(error).__name__}: {error}",
        at=[f"{_inside(frame.filename)}:{frame.lineno} in {frame.name}" for frame in ours[-1:]],
        rule="this is a failure of hspmd_compiler, not of yours",
        fix=f"run again with {TRACEBACK_SWITCH}=1 and report what it prints",
    )
    print(told.text(), file=sys.stderr)
    return told.exit_code


def _inside(filename: str) -> str:
    """A file of the package without the place where it is installed."""
    root = Path(__file__).parents[1]
    path = Path(filename)
    return str(Path(root.name) / path.relative_to(root)) if path.is_relative_to(root) else path.name
