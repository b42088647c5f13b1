"""A command line whose errors name the flag that a misspelt one was meant to be."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, NoReturn

REST = "--run"
"""All behind it goes to another command."""


class HintingParser(argparse.ArgumentParser):
    """Also of its commands: argparse makes their parsers of the same class."""

    given: list[str]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See ArgumentParser; what was given is kept for errors."""
        self.given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """See ArgumentParser."""
        super().error("; ".join([message, *self._hints()]))

    def _hints(self) -> Iterator[str]:
        known = self._flags(self.given)
        words = self.given[: self.given.index(REST)] if REST in self.given else self.given
        for flag in (word.partition("=")[0] for word in words if word.startswith("--")):
            near = get_close_matches(flag[2:], [name[2:] for name in known], n=1) if flag not in known else []
            if near:
                yield f"did you mean --{near[0]} by {flag}?"

    def _flags(self, words: list[str]) -> list[str]:
        """Its own, and those of the commands that are named."""
        found = [flag for flag in self._option_string_actions if flag.startswith("--")]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                named = next((word for word in words if word in action.choices), None)
                if named is not None:
                    found += action.choices[named]._flags(words[words.index(named) + 1 :])
        return found
