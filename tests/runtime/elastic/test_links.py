"""Launchers let each other in, and nobody else; what a file or an order names stays in its folder."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from hspmd_compiler.errors import HspmdError
from hspmd_compiler.runtime.elastic.messages import (
    Arrived,
    Halt,
    HeldReport,
    NextGeneration,
    RunPosition,
    WorldMember,
)
from hspmd_compiler.runtime.elastic.several.launcher_messages import (
    LAUNCHER_KINDS,
    Ended,
    Following,
    FromRank,
    KnownRank,
    LauncherHello,
    LauncherLines,
    SentFile,
    Spawn,
    Standing,
    to_launcher_line,
)
from hspmd_compiler.runtime.elastic.several.links import LauncherPlace, has_ended, listen_at, meet
from hspmd_compiler.runtime.elastic.several.shared_files import SharedFiles
from tests.runtime.elastic.several_hosts import free_addresses

ORDER = NextGeneration(2, (WorldMember(0, 3), WorldMember(7, 5)), "h", 4000, "A", "p", (0, 1), "q", 1, 9)
MEMBER = WorldMember(3, 1)
HALT = Halt(1, HeldReport(1, 4, True), "why", RunPosition(1, 2), {"step": 4})


def meeting(
    changes: Mapping[int, Mapping[str, Any]], devices: Sequence[tuple[int, ...]] = ((0,), (1,), (2,))
) -> dict[int, Any]:
    """What each of three launchers gets from meeting the others, or the error of it."""
    addresses = free_addresses(len(devices))
    found: dict[int, Any] = {}

    def one(number: int) -> None:
        place = LauncherPlace(number, addresses, devices[number], {"artifact": "a"}, "secret")
        place = replace(place, **changes.get(number, {}))
        listener = listen_at(addresses[number])
        try:
            found[number] = meet(place, listener, 2.0)
            for link in found[number][0].values():
                link.close()
        except HspmdError as error:
            found[number] = error
        finally:
            listener.close()

    threads = [Thread(target=one, args=(number,)) for number in range(len(devices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_all_meet_all() -> None:
    found = meeting({})
    for number, (links, hellos) in found.items():
        assert sorted(links) == [each for each in range(3) if each != number]
        assert {at: each.devices for at, each in hellos.items()} == {0: (0,), 1: (1,), 2: (2,)}


def test_one_with_another_secret_is_not_let_in() -> None:
    found = meeting({2: {"secret": "guessed"}})
    assert "is not the launcher of this run" in str(found[2]) and "another secret" in str(found[2])
    assert "not all launchers have come" in str(found[0])


def test_launchers_that_differ_are_told_what_in() -> None:
    found = meeting({2: {"same": {"artifact": "b"}, "devices": (1,)}})
    for number in range(3):
        text = " ".join(str(found[number]).split())
        assert "the launchers don't fit together" in text
        assert "artifact launcher 0-1: a; launcher 2: b" in text and "device 1" in text


def test_strangers_do_not_hinder() -> None:
    """Some say nothing of sense, one claims to be a launcher and knows no secret."""
    addresses = free_addresses(2)
    places = [LauncherPlace(at, addresses, (at,), {}, "secret") for at in range(2)]
    listeners = [listen_at(each) for each in addresses]
    hello = to_launcher_line(LauncherHello(1, (1,), {}, "nonce"))
    for said in (b"GET / HTTP/1.0\n\n", b"[]\n", b"{}\n", hello + hello):
        stranger = socket.create_connection(addresses[0])
        stranger.sendall(said)
    found: list[Any] = []
    other = Thread(target=lambda: found.append(meet(places[1], listeners[1], 5.0)))
    other.start()
    links, hellos = meet(places[0], listeners[0], 5.0)
    other.join()
    assert sorted(links) == [1] and hellos[1].devices == (1,) and len(found) == 1
    for each in listeners:
        each.close()


def test_who_does_not_listen_any_more_has_ended() -> None:
    (address,) = free_addresses(1)
    listener = listen_at(address)
    assert not has_ended(address, 0.2)
    listener.close()
    assert has_ended(address)


def test_messages_come_as_they_were() -> None:
    sent = [
        Following((KnownRank(MEMBER, HALT, Arrived(3)), KnownRank(MEMBER)), (ORDER,)),
        FromRank(3, {"abort": {"generation": 1}}),
        Spawn(MEMBER),
        Ended(3, 9),
        Standing((0, 2), 7, 1, 5),
    ]
    data = b"".join(map(to_launcher_line, sent))
    lines = LauncherLines()
    assert [each for at in range(0, len(data), 7) for each in lines.take(data[at : at + 7])] == sent


@pytest.mark.parametrize(
    "line", [b"[]", b"1", b'{"os":{}}', b'{"spawn":{"member":1}}', b'{"ended":{"id":1,"status":"9"}}', b"{"]
)
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        LauncherLines().take(line + b"\n")


def test_what_is_too_long_is_refused() -> None:
    assert "spawn" in LAUNCHER_KINDS
    with pytest.raises(ValueError):
        LauncherLines(longest=100).take(json.dumps("a" * 200).encode())


def sent(name: str, content: bytes = b"text", digest: str | None = None) -> SentFile:
    found = hashlib.sha256(content).hexdigest() if digest is None else digest
    return SentFile(name, found, base64.b64encode(content).decode())


def test_files_stay_in_their_folder_and_come_whole(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    os.symlink(tmp_path, tmp_path / "scratch" / "out")
    files = SharedFiles(tmp_path / "artifact", tmp_path / "scratch")
    files.take(sent("program/ranks/0.json"))
    assert (tmp_path / "scratch/program/ranks/0.json").read_text() == "text"
    for bad in (sent("../a"), sent(str(tmp_path / "a")), sent("out/a"), sent("a/../../b"), sent("a\0b")):
        with pytest.raises(ValueError, match="leaves its folder"):
            files.take(bad)
    with pytest.raises(ValueError, match="damaged"):
        files.take(sent("a", digest="0" * 64))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["scratch"]


def test_orders_name_the_same_files_on_every_host(tmp_path: Path) -> None:
    here, there = (SharedFiles(tmp_path / at / "artifact", tmp_path / at / "scratch") for at in "ab")
    for each in (here, there):
        each.scratch.mkdir(parents=True)
    (here.scratch / "program").mkdir()
    (here.scratch / "program" / "manifest.json").write_text("{}")
    (here.scratch / "plan.json").write_text("[]")
    for each in (here, there):
        each.artifact.mkdir()
        (each.artifact / "weights").write_text(each.artifact.parent.name)
    (here.scratch / "program" / "weights").symlink_to((here.artifact / "weights").resolve())
    order = replace(ORDER, program=str(here.scratch / "program"), plan=str(here.scratch / "plan.json"))
    for file in here.to_send(order, 1):
        there.take(file)
    assert not list(here.to_send(order, 1)) and list(here.to_send(order, 2))
    found = there.found(here.named(order))
    assert Path(found.program, "weights").read_text() == "b"
    assert Path(found.program, "manifest.json").read_text() == "{}" and Path(found.plan).read_text() == "[]"
    base = there.found(here.named(replace(ORDER, program=str(here.artifact), plan="")))
    assert Path(base.program) == there.artifact and base.plan == ""
    for bad in ("artifact:../x", "scratch:/etc", "other:x", "/etc/passwd"):
        with pytest.raises(ValueError, match=r"folder|names no file"):
            there.found(replace(ORDER, program=bad, plan=""))
