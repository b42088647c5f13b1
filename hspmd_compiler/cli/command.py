"""What a sub-command is, and flags that several of them share."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from typing import Protocol

from ..errors import OptionError
from ..options import Capture


class RunCommand(Protocol):
    """Does the work; the answer is the exit code."""

    def __call__(self, args: Namespace) -> int: ...


class AddFlags(Protocol):
    """Adds a command's arguments to its parser."""

    def __call__(self, parser: ArgumentParser) -> None: ...


@dataclass(frozen=True, slots=True)
class Command:
    """summary: one line of `hspmd --help`. run imports what is heavy itself, so that --help is quick."""

    name: str
    summary: str
    add_flags: AddFlags
    run: RunCommand


MODEL_HELP = "a built-in name (llama-tiny, gpt2, mlp, ...), a HF config.json, or package.module:factory"


def add_model(parser: ArgumentParser) -> None:
    """MODEL and its arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    add_model_arguments(parser)


def add_model_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--arg", metavar="KEY=VALUE", action="append", default=[], help="an argument of the model; repeatable"
    )
    parser.add_argument(
        "--seq-len", metavar="N", help="tokens of a sample of a language model, short for --arg seq=N"
    )


def add_capture(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--capture",
        choices=[capture.value for capture in Capture],
        default=Capture.AUTO.value,
        help="auto: trace one of several blocks that are proven equal; full: trace all (default: auto)",
    )


def add_strategy_name(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--strategy-name", metavar="NAME", help="this strategy, where DIR holds several; or give DIR/NAME"
    )


def add_size(parser: ArgumentParser) -> None:
    given = parser.add_mutually_exclusive_group()
    for unit in ("tokens", "samples"):
        given.add_argument(
            f"--{unit}", type=int, metavar="N", help=f"where {unit} vary: figures of micro-batches of so many"
        )


def add_symbolic(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--symbolic",
        action="store_true",
        help="where sizes vary: run the model's code on symbols, and refuse what looks at how many there are",
    )


def add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")


def model_arguments(args: Namespace) -> dict[str, str]:
    """The texts of `--arg key=value`, by key; `--seq-len` is one of them."""
    pairs = args.arg if args.seq_len is None else [*args.arg, f"seq={args.seq_len}"]
    split = [pair.partition("=") for pair in pairs]
    bad = [(pair, "no =") for pair, (_, sign, _) in zip(pairs, split, strict=True) if not sign]
    bad += [(key, "not a name") for key, sign, _ in split if sign and not key.isidentifier()]
    names = [key for key, _, _ in split]
    bad += [(key, "given more than once") for key in sorted(set(names)) if names.count(key) > 1]
    if bad:
        raise OptionError(
            "--arg is not understood",
            details=bad,
            rule="--arg is KEY=VALUE, once for each KEY",
            fix="--arg layers=2",
        )
    return {key: value for key, _, value in split}
