"""`hspmd launch`: what it prints and writes, and two nodes on this host that train what one does."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import hspmd_compiler as hspmd
from hspmd_compiler.artifact.store import load
from hspmd_compiler.artifact.write import write
from hspmd_compiler.cli.main import main
from hspmd_compiler.models.models import load_model
from hspmd_compiler.options import OptimizerConfig
from tests.docs.page_blocks import with_this_python
from tests.runtime import hand_made

Expect = Callable[[str, str], None]

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 240  # seconds

UNEQUAL = {
    "pipelines": [
        {"stages": [{"devices": [0, 1, 2], "layers": [0, 2]}], "micro_batches": [2, 2]},
        {
            "stages": [{"devices": [3], "layers": [0, 1]}, {"devices": [4], "layers": [1, 2]}],
            "micro_batches": [1],
        },
    ]
}
THREE = {
    "pipelines": [
        {"stages": [{"devices": [0, 1], "layers": 1}, {"devices": [2], "layers": 1}], "micro_batches": [2, 3]}
    ]
}


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an artifact of three ranks and machines for it, entered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("RANK", "SLURM_JOB_NODELIST", "SLURM_NODEID"):
        monkeypatch.delenv(name, raising=False)
    hand_made.save(tmp_path / "made", OptimizerConfig())
    write("made", replace(load("made"), strategy=THREE))
    (tmp_path / "hosts").write_text("a slots=2\nb slots=3\nc slots=3\n")
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], folder: Path) -> tuple[str, str]:
    """What went to both outputs, without the folder's place."""
    out, err = capsys.readouterr()
    return out.replace(str(folder.resolve()), "FOLDER"), err.replace(str(folder.resolve()), "FOLDER")


def test_it_prints(workplace: Path, capsys: pytest.CaptureFixture[str], expect: Expect) -> None:
    assert main(["launch", "made", "--hosts", "hosts", "--print"]) == 0
    out, err = said(capsys, workplace)
    expect("cli/launch", out + err)
    flags = ["--launcher", "ranks", "--master-addr", "10.0.0.1", "--master-port", "4000"]
    assert main(["launch", "made", "--hosts", "hosts", *flags, "--run", "--text", "a b", "--steps", "2"]) == 0
    out, err = said(capsys, workplace)
    expect("cli/launch_ranks", out)
    assert not err


def test_it_prints_commands_of_an_elastic_run(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--launcher", "elastic", "--master-port", "4000", "--run", "--text", "a", "--steps", "2"]
    assert main(["launch", "made", "--hosts", "hosts", *flags]) == 0
    out, err = said(capsys, workplace)
    lines = [line for line in out.splitlines() if not line.startswith("#")]
    places = [line.rpartition(" ")[2] for line in lines]
    assert len(set(places)) == len(lines) > 1 and all(place.endswith(":4000") for place in places)
    for line, place in zip(lines, places, strict=True):
        assert f"--elastic --elastic-hosts {','.join(places)} --elastic-here {place}" in line
        assert "hspmd run FOLDER/made --ranks " in line and "MASTER_ADDR" not in line
    assert not err
    assert main(["launch", "made", "--hosts", "hosts", "--master-addr", "a", *flags]) == 2


def test_it_writes_scripts(workplace: Path, capsys: pytest.CaptureFixture[str], expect: Expect) -> None:
    assert main(["launch", "made", "--hosts", "hosts", "-o", "scripts"]) == 0
    out, err = said(capsys, workplace)
    scripts = sorted((workplace / "scripts").iterdir())
    assert [path.name for path in scripts] == ["node-0.sh", "node-1.sh"]
    assert all(path.stat().st_mode & stat.S_IXUSR for path in scripts)
    expect("cli/launch_scripts", out + scripts[1].read_text().replace(str(workplace.resolve()), "FOLDER"))
    assert not err


def test_slurm(workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[08-10]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1,2(x2)")
    found = []
    for index in range(3):
        monkeypatch.setenv("SLURM_NODEID", str(index))
        assert main(["launch", "made", "--this-node", "--run", "--text", "t", "--steps", "1"]) == 0
        found.append(said(capsys, workplace)[0])
    assert "--node-rank=0 --nproc-per-node=1 " in found[0]
    assert "--node-rank=1 --nproc-per-node=2 " in found[1]
    assert "--master-addr=n08 " in found[1]
    assert found[2] == "# n10 has no rank\n"


def test_this_node_by_its_name(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own").write_text(f"other slots=1\n{socket.gethostname()} slots=2\n")
    assert (
        main(["launch", "made", "--hosts", "own", "--this-node", "--run", "--text", "t", "--steps", "1"]) == 0
    )
    assert "--node-rank=1 " in said(capsys, workplace)[0]


@pytest.mark.parametrize(
    ("name", "args"),
    [
        (
            "bad-options",
            ["--hosts", "hosts", "--master-port", "0", "--this-node", "-o", "x", "--run", "--ranks=1"],
        ),
        ("no-machines", []),
        ("no-hostfile", ["--hosts", "none"]),
        ("too-few", ["--hosts", "few"]),
        ("not-here", ["--hosts", "hosts", "--this-node"]),
    ],
)
def test_mistakes(
    name: str,
    args: list[str],
    capsys: pytest.CaptureFixture[str],
    expect: Expect,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "laptop")
    Path("few").write_text('a slots=1 kind="cuda NVIDIA H100"\nb slots=1\n')
    assert main(["launch", "made", *args]) == 2
    expect(f"cli/launch-{name}", capsys.readouterr().err)


def test_flags_of_run_are_checked_here(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["launch", "made", "--hosts", "hosts", "--run", "--text", "t", "--step", "3"])
    assert ended.value.code == 2
    assert "--step" in capsys.readouterr().err


DATA = """
import torch

def batches(epoch):
    generator = torch.Generator().manual_seed(epoch)
    for _ in range(3):
        x = torch.randn(5, 64, generator=generator)
        yield {"x": x, "y": x[:, :8].argmax(1)}
"""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "ranks"])
def test_two_nodes_train_what_one_does(
    workplace: Path, capfd: pytest.CaptureFixture[str], launcher: str, free_port: int
) -> None:
    """Nodes of two and three ranks on this host, each started by the command that is printed for it."""
    program = hspmd.compile(
        load_model("mlp", {"layers": "2", "features": "64", "classes": "8"}), strategy=UNEQUAL
    )
    program.save("five")
    Path("own_data.py").write_text(DATA)
    Path("nodes").write_text("localhost slots=2\n127.0.0.1 slots=3\n")
    flags = ["--data", "own_data:batches", "--steps", "3", "--json"]
    asked = ["launch", "five", "--hosts", "nodes", "--launcher", launcher, "--master-port", str(free_port)]
    assert main([*asked, "--run", *flags]) == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if not line.startswith("#")]
    nodes = [start(line) for line in lines]
    first, *other = [finished(node) for node in nodes]
    assert len(nodes) == 2
    assert not any(other)
    alone = finished(start(f"hspmd run five {' '.join(flags)}"))
    places, *steps = map(json.loads, first.splitlines())
    assert [place.split(", ")[1] for place in places["ranks"]] == [f"local {i}" for i in (0, 1, 0, 1, 2)]
    expected = [json.loads(line)["loss"] for line in alone.splitlines()[1:]]
    assert [step["loss"] for step in steps] == pytest.approx(expected, rel=1e-6)
    assert len(expected) == 3


def start(command: str) -> subprocess.Popen[str]:
    """Run a line in a shell, by the Python of the tests."""
    before, name, rest = command.partition("hspmd run" if "hspmd run" in command else "torchrun")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}.", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        before + with_this_python(name + rest),
        shell=True,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, out + err
    return out
