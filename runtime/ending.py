"""The end of a process whose main thread waits for ever inside of a library."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from ..errors import HspmdError


def _print(error: HspmdError) -> None:
    print(error.text(), file=sys.stderr, flush=True)


tell: Callable[[HspmdError], None] = _print
"""How an error is told before the process ends; a rank that a launcher has forked tells its launcher."""


def end_process(error: HspmdError) -> None:
    """Tell an error and end this process at once, from whatever thread."""
    try:
        tell(error)
    finally:
        os._exit(error.exit_code)
