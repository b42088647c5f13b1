"""`hspmd demo`: runs the quickstart of the checkout."""

from __future__ import annotations

import runpy
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ..errors import OptionError
from .command import Command

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "quickstart" / "demo.py"


def add_flags(parser: ArgumentParser) -> None:
    """The demo takes no options."""


def run(args: Namespace) -> int:
    """Runs the script as if it had been named to Python."""
    if not SCRIPT.is_file():
        raise OptionError(
            "the demo is not installed with the package",
            rule="it is a part of the checkout, examples/quickstart/demo.py",
            fix="clone the project and call `make demo`",
        )
    sys.argv = [str(SCRIPT)]
    runpy.run_path(str(SCRIPT), run_name="__main__")
    return 0


COMMAND = Command("demo", "compile, verify and train a small Llama on five local ranks", add_flags, run)
