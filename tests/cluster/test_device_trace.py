"""Traces of devices: read by step or by seconds, every bad value told at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hspmd_compiler.cluster.device_trace import DeviceMoment, DeviceTrace, check_devices, read_device_trace
from hspmd_compiler.errors import OptionError

Expect = Callable[[str, str], None]

BY_STEP = """
moments:
- {step: 0, present: "0-7"}
- {step: 10, present: [0, 1, 2, 3, 4, 5, 6], slow: {3: 2.5, 0: 1}}
- {step: 20, present: "0-5"}
"""
BAD = """
moments:
- {step: 1, present: "0-3", seconds: 2}
- {seconds: 3, present: "0,0,1", slow: {7: 2, 1: 0.5}}
- {step: 3, present: []}
- {step: 3, present: "0-1", slow: {1: 5000}}
- {present: "0"}
"""


def read(folder: Path, text: str, name: str = "trace.yaml") -> DeviceTrace:
    (folder / name).write_text(text)
    return read_device_trace(folder / name)


def test_by_step(tmp_path: Path) -> None:
    trace = read(tmp_path, BY_STEP)
    assert trace.moments[1] == DeviceMoment(10, None, (0, 1, 2, 3, 4, 5, 6), {3: 2.5, 0: 1.0})
    assert [len(moment.present) for moment in trace.moments] == [8, 7, 6]
    assert trace.devices == tuple(range(8))


def test_by_seconds(tmp_path: Path) -> None:
    text = '{"moments": [{"seconds": 0, "present": "0-1"}, {"seconds": 1.5, "present": [1]}]}'
    assert [each.seconds for each in read(tmp_path, text, "trace.json").moments] == [0, 1.5]


def test_every_bad_value_is_told(tmp_path: Path, expect: Expect) -> None:
    with pytest.raises(OptionError) as caught:
        read(tmp_path, BAD)
    expect("cluster/trace_bad", str(caught.value).replace(str(tmp_path), "FOLDER"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("moments: []", "moments none"),
        ("moments: [{step: -1, present: '0'}]", "step -1: an integer of at least 0"),
        ("moments: [{step: 0, here: '0'}]", "here"),
        ("moments: [{step: 0, present: '3-1'}]", "present"),
        ("- {step: 0, present: '0'}", "trace"),
        ("version: 2\nmoments: [{step: 0, present: '0'}]", "version"),
        ("moments: [{seconds: .nan, present: '0'}]", "nan"),
    ],
)
def test_a_bad_form(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(OptionError) as caught:
        read(tmp_path, text)
    assert told in " ".join(str(caught.value).split())


def test_unknown_devices_are_told_at_once(tmp_path: Path) -> None:
    trace = read(tmp_path, BY_STEP)
    check_devices(trace, range(8))
    with pytest.raises(OptionError) as caught:
        check_devices(trace, (0, 1, 2, 3, 4), "trace.yaml")
    assert [path for path, _ in caught.value.details] == ["moments[0].present"] * 3 + [
        "moments[1].present",
        "moments[1].present",
        "moments[2].present",
    ]
    assert "device 7 is unknown: the strategies use 0-4" in str(caught.value)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="can't read the devices of"):
        read_device_trace(tmp_path / "none.yaml")
