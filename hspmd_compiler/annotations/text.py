"""Reads the text form of annotations; `str(annotation)` writes it.

    [0,1 | 2,3,4]  <S0x2 | S0x3>  hetero=dup

Groups of devices, their placements (outermost first, a blank between), the relation of the groups.
S0x2 splits dim 0 in two, S0(3,1) by shares, S0(0:2,1:3) by intervals, S0x2/8 in units of 8 rows,
S0x3{48,24(8,8,8),24/8} inside each block; Dx2 copies, Px2 addends, R a single device without any.
hetero is dup, partial or a dim, with shares if they aren't even: hetero=0(4,2).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from ..errors import AnnotationError
from .annotation import Annotation
from .device import DeviceGroup
from .split import Block, Share, Split
from .states import DistributedStates, Duplicate, Partial, Placement, StateKey, Unsplit

T = TypeVar("T")

_TOKEN = re.compile(r"\s*(\d+|hetero|dup|partial|[SDPRx/:,|=(){}\[\]<>]|$|.)", re.DOTALL)

GRAMMAR = "[devices | ...]  <placements | ...>  hetero=dup|partial|DIM"


def parse_annotation(text: str) -> Annotation:
    """The annotation a text stands for; AnnotationError names the column where reading stops."""
    return _Reader(text).annotation()


def parse_states(text: str) -> DistributedStates:
    """The states of one group, as `S0x2 Dx3`, without brackets."""
    return _Reader(text).only_states()


class _Reader:
    """A cursor over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        found = [match for match in _TOKEN.finditer(text) if match.group(1) or match.end() == len(text)]
        self.tokens = [(match.group(1), match.start(1)) for match in found]
        self.at = 0

    def annotation(self) -> Annotation:
        self.take("[", "list the devices first, as [0,1]")
        groups = self.separated(self.group, "|")
        self.take("]", "close the devices with ], separate ids by ',' and groups by '|'")
        self.take("<", "give the placements after the devices, as <S0x2>")
        states = self.separated(self.states, "|")
        self.take(">", "close the placements with >, separate groups by '|'")
        hetero, shares = self.hetero() if self.next == "hetero" else (None, None)
        self.take("", "nothing may follow; write hetero=dup, hetero=partial or hetero=DIM last")
        return Annotation(groups, states, hetero, shares)

    def only_states(self) -> DistributedStates:
        states = self.states()
        self.take("", "write placements with a blank between, as S0x2 Dx3")
        return states

    @property
    def next(self) -> str:
        return self.tokens[self.at][0]

    def take(self, token: str, fix: str) -> None:
        if self.next != token:
            raise self.unreadable(f"'{token}'" if token else "the end", fix)
        self.at += 1 if token else 0

    def skip(self, token: str) -> bool:
        if self.next != token:
            return False
        self.at += 1
        return True

    def number(self, what: str) -> int:
        if not self.next.isdecimal():
            raise self.unreadable(what, f"write {what} here")
        self.at += 1
        return int(self.tokens[self.at - 1][0])

    def separated(self, read: Callable[[], T], mark: str) -> tuple[T, ...]:
        found = [read()]
        while self.skip(mark):
            found.append(read())
        return tuple(found)

    def group(self) -> DeviceGroup:
        return DeviceGroup(self.separated(lambda: self.number("a device id"), ","))

    def states(self) -> DistributedStates:
        if self.skip("R"):
            return DistributedStates()
        placements = [self.placement()]
        while self.next in ("S", "D", "P"):
            placements.append(self.placement())
        return DistributedStates(tuple(placements))

    def placement(self) -> Placement:
        if self.skip("S"):
            return self.split()
        kind = Duplicate if self.skip("D") else Partial if self.skip("P") else None
        if kind is None:
            raise self.unreadable("a placement", "write S0x2, Dx2, Px2, or R for a single device")
        return kind(self.parts())

    def parts(self) -> int:
        self.take("x", "write x and the number of parts, as S0x2 or Dx2")
        return self.number("the number of parts")

    def split(self) -> Split:
        dim = self.number("the dim that is split")
        shares = self.shares() if self.next == "(" else None
        parts = self.parts() if shares is None else len(shares)
        blocks: tuple[Block, ...] = ()
        if braced := self.skip("{"):
            blocks = self.separated(self.block, ",")
        unit = self.number("the unit") if self.skip("/") else 1
        if braced:
            self.take("}", "close the blocks with }, separate them by ',', a unit comes last, as {8,8/2}")
        return Split(dim, parts, shares, blocks, unit)

    def block(self) -> Block:
        length = self.number("the length of a block")
        return Block(length, self.shares() if self.next == "(" else None)

    def shares(self) -> tuple[Share, ...]:
        self.take("(", "write shares as (3,1)")
        shares = self.separated(self.share, ",")
        self.take(")", "close the shares with ), separate them by ','")
        return shares

    def share(self) -> Share:
        low = self.number("a share")
        return (low, self.number("the end of a share")) if self.skip(":") else low

    def hetero(self) -> tuple[StateKey, tuple[int, ...] | None]:
        self.at += 1
        self.take("=", "write hetero=dup, hetero=partial or hetero=DIM")
        if self.next in ("dup", "partial"):
            self.at += 1
            return Unsplit(self.tokens[self.at - 1][0]), None
        dim = self.number("dup, partial or a dim")
        if not self.skip("("):
            return dim, None
        shares = self.separated(lambda: self.number("a share"), ",")
        self.take(")", "close the shares with ), separate them by ','")
        return dim, shares

    def unreadable(self, expected: str, fix: str) -> AnnotationError:
        token, column = self.tokens[self.at]
        return AnnotationError(
            f"expected {expected} at column {column + 1}, found {repr(token) if token else 'the end'}",
            details=[("text", self.text), ("", " " * column + "^")],
            rule=GRAMMAR,
            fix=fix,
        )
