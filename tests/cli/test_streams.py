"""Streams that are closed or full, readers that have seen enough, files that the system refuses."""

from __future__ import annotations

import errno
import os
import sys
from argparse import Namespace

import pytest
from rich.text import Text

from hspmd_compiler.cli import main as command_line
from hspmd_compiler.cli.command import Command
from hspmd_compiler.cli.show import show_rendered


def failing(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command that raises this."""

    def run(args: Namespace) -> int:
        raise error

    monkeypatch.setattr(command_line, "COMMANDS", (Command("fail", "", lambda parser: None, run),))
    return command_line.main(["fail"])


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/there"), 2, "/there can't be used"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "the output can't be written"),
        (OSError("odd"), 1, "InternalError"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_the_system_refuses_is_no_failure_of_ours(
    error: BaseException,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert failing(error, monkeypatch) == code
    assert words in capsys.readouterr().err


def test_closed_streams_take_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert command_line.main(["strategy", "show", "nowhere.yaml"]) == 2


def test_a_reader_that_leaves_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich would leave the process with code 1."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        with pytest.raises(BrokenPipeError):
            show_rendered([Text("seen"), Text("enough")])
