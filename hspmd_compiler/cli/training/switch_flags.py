"""Flags of `hspmd run`: which strategy of several runs when."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace


def add_flags(parser: ArgumentParser) -> None:
    """The flags; there are none yet."""


def check(args: Namespace) -> list[tuple[str, str]]:
    """What is wrong with them, as (flag, text)."""
    return []
