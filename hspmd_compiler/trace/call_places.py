"""Where in the user's model the calls of a running step come from: module, line, autograd node."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType, FrameType

import torch
from torch import nn
from torch.autograd.graph import Node

from ..base.source_lines import SourceLine
from ..ir.graph import Row
from .capture import latest_autograd_number

FORWARD = "forward"


@dataclass(slots=True)
class CallPlaces:
    """Where in the user's model a call comes from, and for a call of the backward, what it differentiates.

    paths: row -> module. numbers: row -> autograd node. running: the node that runs in the backward, None
    between two of them, where gradients of one value are added up. last: line of the node before.
    """

    paths: dict[int, str] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    running: int | None = None
    last: str = ""
    _first_of: dict[int, Row] = field(default_factory=dict)
    _lines: dict[tuple[CodeType, int], str] = field(default_factory=dict)

    def note_forward(self, row: Row) -> None:
        """The module that runs, the user's line, and the autograd node that was made for the call."""
        number = latest_autograd_number()
        self.numbers[row.id] = number
        self._first_of.setdefault(number, row)
        row.where = self._line()
        if self.modules:
            self.paths[row.id] = self.modules[-1]

    def note_backward(self, row: Row) -> None:
        """Module and line of the call that is differentiated; a sum of gradients is known by its operands."""
        if self.running is None:
            self.numbers[row.id] = latest_autograd_number()
            row.where = self.last
            return
        self.numbers[row.id] = self.running
        first = self._first_of.get(self.running)
        if first is not None:
            row.where = first.where
            if first.id in self.paths:
                self.paths[row.id] = self.paths[first.id]

    def note_part(self, part: Row, row: Row) -> None:
        """One of several results comes from where the call does."""
        part.where = row.where
        self.numbers[part.id] = self.numbers[row.id]
        if row.id in self.paths:
            self.paths[part.id] = self.paths[row.id]

    def _line(self) -> str:
        """Text of the innermost line of a user's `forward` that is running."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_name == FORWARD:
                text = self._text(frame.f_code, frame.f_lineno)
                if text:
                    return text
            frame = frame.f_back
        return ""

    def _text(self, code: CodeType, number: int) -> str:
        key = (code, number)
        if key not in self._lines:
            line = SourceLine(code.co_filename, number, code.co_name)
            self._lines[key] = line.text() if line.is_users else ""
        return self._lines[key]

    def watch(self, model: nn.Module) -> Iterable[torch.utils.hooks.RemovableHandle]:
        """Follow which module of a model runs."""
        for path, module in model.named_modules():
            yield module.register_forward_pre_hook(lambda *_, path=path: self.modules.append(path))
            yield module.register_forward_hook(lambda *_: self._left(), always_call=True)

    def _left(self) -> None:
        self.modules.pop()

    def follow(self, root: Node) -> None:
        """Follow which autograd node runs, of all below `root`."""
        seen, queue = {root}, [root]
        while queue:
            node = queue.pop()
            number = node._sequence_nr()
            node.register_prehook(lambda _, number=number: self._enter(number))
            node.register_hook(lambda *_, number=number: self._leave(number))
            for below, _ in node.next_functions:
                if below is not None and below not in seen:
                    seen.add(below)
                    queue.append(below)

    def _enter(self, number: int) -> None:
        self.running = number

    def _leave(self, number: int) -> None:
        first = self._first_of.get(number)
        self.running, self.last = None, "" if first is None else first.where
