"""Programs, plans and checkpoints by names that mean the same on every host of a run; made files are sent."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ....errors import RunError
from ..messages import NextGeneration
from .launcher_messages import LONGEST_LINE, SentFile

MOST_BYTES = LONGEST_LINE // 2
"""Of one file: base64 and the rest of a message fit."""


@dataclass
class SharedFiles:
    """artifact: each host's own copy. scratch: a folder of this launcher for what is made meanwhile.

    checkpoints: where all hosts find them, None without any.
    """

    artifact: Path
    scratch: Path
    checkpoints: Path | None = None
    _sent: set[tuple[int, str]] = field(default_factory=set)

    def named(self, order: NextGeneration) -> NextGeneration:
        """An order for another host."""
        return _with_paths(order, self._name)

    def found(self, order: NextGeneration) -> NextGeneration:
        """An order from another host. ValueError where it names something else than a file of the run."""
        return _with_paths(order, self._path)

    def to_send(self, order: NextGeneration, launcher: int) -> Iterator[SentFile]:
        """What the order needs that was made here, once for each launcher."""
        for path in (Path(each) for each in _paths(order) if each):
            if not path.is_relative_to(self.scratch):
                continue
            for file in sorted(each for each in (path, *path.rglob("*")) if each.is_file()):
                name = str(file.relative_to(self.scratch))
                if (launcher, name) not in self._sent:
                    self._sent.add((launcher, name))
                    yield self._read(name, file)

    def take(self, sent: SentFile) -> None:
        """Keep a file that was sent; ValueError where it is not what it says."""
        target = self._inside(self.scratch, sent.name)
        if sent.link:
            self._link(target, Path(self._path(sent.link)))
            return
        content = base64.b64decode(sent.content, validate=True)
        if len(content) > MOST_BYTES or hashlib.sha256(content).hexdigest() != sent.sha256:
            raise ValueError(f"{sent.name} has come damaged")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    def _read(self, name: str, file: Path) -> SentFile:
        if file.is_symlink():
            return SentFile(name, "", "", self._name(str(file.resolve())))
        if file.stat().st_size > MOST_BYTES:
            raise RunError(
                f"a program made for what is left is too large to be sent: {name}",
                details=[("bytes", f"{file.stat().st_size:,}, at most {MOST_BYTES:,}")],
                rule="the deciding launcher sends the others what it compiles",
                fix="compile a strategy for what may be left ahead: --strategy A.yaml --strategy B.yaml",
            )
        content = file.read_bytes()
        return SentFile(name, hashlib.sha256(content).hexdigest(), base64.b64encode(content).decode())

    @staticmethod
    def _link(target: Path, there: Path) -> None:
        """A program that was made links to the weights of the artifact, which each host has."""
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_symlink():
            target.symlink_to(there.resolve())

    @property
    def _roots(self) -> dict[str, Path]:
        roots = {"scratch": self.scratch, "artifact": self.artifact}
        return roots if self.checkpoints is None else {**roots, "checkpoint": self.checkpoints}

    def _name(self, path: str) -> str:
        if not path:
            return ""
        for kind, root in self._roots.items():
            for base in (root, root.resolve()):
                if Path(path).is_relative_to(base):
                    return f"{kind}:{Path(path).relative_to(base)}"
        raise ValueError(f"{path} is no file of the run")

    def _path(self, name: str) -> str:
        if not name:
            return ""
        kind, _, inner = name.partition(":")
        if kind not in self._roots:
            raise ValueError(f"{name!r} names no file of the run")
        return str(self._inside(self._roots[kind], inner))

    @staticmethod
    def _inside(root: Path, name: str) -> Path:
        path = root / name
        if "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{name!r} leaves its folder")
        if not path.resolve().is_relative_to(root.resolve()):
            raise ValueError(f"{name!r} leaves its folder")
        return path


def _paths(order: NextGeneration) -> tuple[str, ...]:
    return (order.program, order.plan, order.restored, order.copies)


def _with_paths(order: NextGeneration, made: Callable[[str], str]) -> NextGeneration:
    program, plan, restored, copies = map(made, _paths(order))
    checkpoint = made(order.checkpoint)
    return replace(order, program=program, plan=plan, restored=restored, copies=copies, checkpoint=checkpoint)
