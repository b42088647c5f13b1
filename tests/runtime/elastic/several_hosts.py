"""Launchers as processes of this host that pose as hosts of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from hspmd_compiler.errors import HspmdError
from hspmd_compiler.program.program import Op
from hspmd_compiler.runtime.elastic.several.host_run import meet_hosts
from hspmd_compiler.runtime.elastic.several.links import LauncherPlace
from hspmd_compiler.runtime.elastic.several.shared_files import SharedFiles
from tests.runtime.elastic.product import LIMITS, Training

LONGEST_S = 60.0
PAUSE_S = 0.02


def free_addresses(count: int) -> list[tuple[str, int]]:
    found = []
    for _ in range(count):
        probe = socket.socket()
        probe.bind(("127.0.0.1", 0))
        found.append(probe)
    addresses = [("127.0.0.1", int(each.getsockname()[1])) for each in found]
    for each in found:
        each.close()
    return addresses


@dataclass
class SeveralHosts:
    """shares: devices of each host. strike: called by whoever decides, behind each step, with all pids."""

    directory: Path
    folder: Path
    shares: Sequence[tuple[int, ...]]
    steps: int = 6
    faults: Mapping[int, tuple[int, Op, bool, int]] = field(default_factory=dict)
    respawns: int = 0
    strike: Callable[[SeveralHosts, int], None] = lambda hosts, step: None
    pause_s: float = 0.0
    checkpoints: Path | None = None
    pids: list[int] = field(default_factory=list)
    codes: dict[int, int] = field(default_factory=dict)
    number: int = -1

    def run(self) -> SeveralHosts:
        self.addresses = free_addresses(len(self.shares))
        self.folder.mkdir(exist_ok=True)
        for number in range(len(self.shares)):
            sys.stdout.flush()
            pid = os.fork()
            if not pid:
                os._exit(self._one(number))
            self.pids.append(pid)
            (self.folder / f"pid-{number}").write_text(str(pid))
        self._await_all()
        return self

    def pid(self, number: int) -> int:
        return int((self.folder / f"pid-{number}").read_text())

    def of(self, key: str) -> list[Any]:
        lines = (self.folder / "records").read_text().splitlines()
        return [record[key] for record in map(json.loads, lines) if key in record]

    def errors(self, number: int) -> str:
        path = self.folder / f"error-{number}"
        return path.read_text() if path.exists() else ""

    def once(self, name: str) -> bool:
        """Whether this is asked for the first time in the run."""
        try:
            (self.folder / f"did-{name}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _one(self, number: int) -> int:
        self.number = number
        try:
            scratch = self.folder / f"scratch-{number}"
            scratch.mkdir()
            place = LauncherPlace(number, self.addresses, self.shares[number], {"artifact": "one"}, "secret")
            devices = sorted(device for share in self.shares for device in share)
            host = meet_hosts(
                place,
                SharedFiles(self.directory, scratch, self.checkpoints),
                devices,
                LIMITS.silent_s,
                LONGEST_S / 2,
            )
            training = Training(
                self.directory, scratch, self.steps, self.faults, self.respawns, on_step=self._on_step
            )
            training.pause_s, training.checkpoints = self.pause_s, self.checkpoints
            training.host, training.tell = host, self._write
            training.run()
        except HspmdError as error:
            (self.folder / f"error-{number}").write_text(str(error))
            return error.exit_code
        except BaseException:
            (self.folder / f"error-{number}").write_text(traceback.format_exc())
            return 3
        return 0

    def _write(self, record: Mapping[str, Any]) -> None:
        with (self.folder / "records").open("a") as file:
            file.write(json.dumps({**record, "by": self.number}) + "\n")

    def _on_step(self, training: Training, step: int) -> None:
        self.strike(self, step)

    def _await_all(self) -> None:
        deadline = monotonic() + LONGEST_S
        left = dict(enumerate(self.pids))
        while left:
            for number, pid in list(left.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self.codes[number] = os.waitstatus_to_exitcode(status)
                    del left[number]
            if monotonic() > deadline:
                for pid in left.values():
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                raise TimeoutError(f"launchers {sorted(left)} still run")
            sleep(PAUSE_S)
