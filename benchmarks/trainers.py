"""A step of ours beside torch's own trainers: wall and CPU time, bytes on the wire, most memory, as ratios.

    python benchmarks/trainers.py [--only NAME[,NAME]] [--turns N] [--link RATE] [--torch-compile] [--json F]

Each pair trains the same model on the same batches in the same processes, gloo between them, in turns, the
optimizer included; one thread per rank. Times are medians, ratios medians of pairs' ratios; wall is that of
the slowest rank, CPU that of all ranks together. Memory is of steps of one side alone, above what the
process had before there was a model. Where the kernel allows it the ranks have a network of their own:
bytes are theirs alone then, and `--link` slows it down. Exit code 1 where losses of both sides differ.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from statistics import median

import trainer_models as models
from rich.console import Console
from rich.table import Table
from trainer_cases import CASES, Case
from trainer_rank import OURS, THEIRS
from trainer_sides import LR

HERE = Path(__file__).resolve()
TURNS = 15
OWN_NETWORK = "TRAINERS_OWN_NETWORK"
PORT = 29511
WIDTH = 140
BURST, LATENCY = "256kb", "50ms"
SAME_LOSS = 1e-3
"""Relative; AdamW divides a gradient by its size, so that float32's rounding shows."""
SEPARATE = (["unshare", "-n"], ["unshare", "-rn"])

Found = dict[str, object]


def main() -> int:
    """Measure every pair and print a table."""
    args = _arguments()
    if OWN_NETWORK not in os.environ:
        _enter_own_network()
    console = Console(width=WIDTH)
    is_own = os.environ.get(OWN_NETWORK) == "1"
    if not is_own:
        console.print("no network of its own here: bytes are those of all of this machine")
    problem = _raise_link(args.link, is_own)
    if problem:
        console.print(f"--link {args.link} is skipped: {problem}")
        return 0
    found = {name: _measured(name, CASES[name], args) for name in args.only}
    console.print(_table(found, args))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    unlike = [name for name, of in found.items() if of["loss_gap"] > SAME_LOSS]
    for name in unlike:
        console.print(f"{name}: losses of both sides differ, by {found[name]['loss_gap']:.2g}")
    return int(bool(unlike))


def _arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--only", type=_names, default=[*CASES], metavar="NAME[,NAME]", help=", ".join(CASES))
    parser.add_argument("--turns", type=int, default=TURNS, metavar="N", help=f"pairs (default: {TURNS})")
    parser.add_argument("--link", metavar="RATE", help="of the network between ranks, as tc says it: 1gbit")
    parser.add_argument(
        "--torch-compile", action="store_true", help="of our side, but not where memory is measured"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    unknown = [name for name in text.split(",") if name not in CASES]
    if unknown:
        raise SystemExit(f"no such pair: {', '.join(unknown)}; there are {', '.join(CASES)}")
    return text.split(",")


def _enter_own_network() -> None:
    """Start anew in a network namespace, where the kernel allows one: nobody else's traffic is met there."""
    os.environ[OWN_NETWORK] = "0"
    for command in SEPARATE:
        tried = [*command, "ip", "link", "set", "lo", "up"]
        if shutil.which("unshare") and shutil.which("ip") and not _failed(tried):
            os.environ[OWN_NETWORK] = "1"
            os.execvp(command[0], [*command, sys.executable, *sys.argv])


def _raise_link(rate: str | None, is_own: bool) -> str:
    """Bring the loopback up, at a rate if there is one; why it can't be."""
    if not is_own:
        return "" if rate is None else "the kernel gives no network of its own"
    if problem := _failed(["ip", "link", "set", "lo", "up"]):
        return problem
    if rate is None:
        return ""
    if shutil.which("tc") is None:
        return "there is no tc"
    shaped = ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", rate]
    return _failed([*shaped, "burst", BURST, "latency", LATENCY])


def _failed(command: list[str]) -> str:
    """Why a command failed, empty if it didn't."""
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return "" if done.returncode == 0 else done.stderr.strip() or f"{command[0]} failed"


def _measured(name: str, case: Case, args: Namespace) -> Found:
    import hspmd_compiler as hspmd

    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "built"
        optimizer = {"name": "adamw", "lr": LR}
        program = hspmd.compile(
            partial(models.build, case.model), strategy=case.strategy, optimizer=optimizer
        )
        program.save(built)
        how = {"side": "both", "turns": args.turns, "compiled": args.torch_compile}
        steps = _run(case, {"case": name, "folder": str(built), **how})
        peaks = {
            side: max(
                rank["peak_bytes"] for rank in _run(case, {"case": name, "folder": str(built), "side": side})
            )
            for side in (OURS, THEIRS)
        }
    return {"beside": case.beside, "ranks": case.ranks, **_figures(steps), "peak_bytes": peaks}


def _run(case: Case, given: Found) -> list[dict]:
    """What every rank has written."""
    with tempfile.TemporaryDirectory() as folder:
        argument = json.dumps({**given, "out": folder})
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(case.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        command = [sys.executable, str(HERE.parent / "trainer_rank.py"), argument]
        started = [
            subprocess.Popen(command, env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(case.ranks)
        ]
        codes = [process.wait() for process in started]
        if any(codes):
            raise SystemExit(f"{given['case']}: ranks ended with {codes}")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(case.ranks)]


def _figures(ranks: list[dict[str, list[dict[str, float]]]]) -> Found:
    """Medians of both sides, and of the ratios of pairs."""
    taken = {
        side: [
            {
                "wall_s": max(each["wall_s"] for each in step),
                "cpu_s": sum(each["cpu_s"] for each in step),
                "sent_bytes": step[0]["sent_bytes"],
                "loss": step[0]["loss"],
            }
            for step in zip(*(rank[side] for rank in ranks), strict=True)
        ]
        for side in (OURS, THEIRS)
    }
    found: Found = {}
    for key in ("wall_s", "cpu_s", "sent_bytes"):
        found[key] = {side: median(step[key] for step in of) for side, of in taken.items()}
    pairs = [*zip(taken[OURS], taken[THEIRS], strict=True)]
    for key in ("wall_s", "cpu_s"):
        found[f"{key[:-2]}_ratio"] = median(ours[key] / theirs[key] for ours, theirs in pairs)
    found["loss_gap"] = max(
        abs(ours["loss"] - theirs["loss"]) / abs(theirs["loss"]) for ours, theirs in pairs
    )
    return found


def _table(found: dict[str, Found], args: Namespace) -> Table:
    link = "" if args.link is None else f", a link of {args.link}"
    table = Table(title=f"a step of ours / of torch's trainer{link}, medians of {args.turns} pairs")
    for column in ("pair", "beside", "ranks"):
        table.add_column(column)
    for column in ("wall ms", "ratio", "CPU ms", "ratio", "MB sent", "peak MB"):
        table.add_column(column, justify="right")
    for name, of in found.items():
        wall, cpu, sent, peak = (of[key] for key in ("wall_s", "cpu_s", "sent_bytes", "peak_bytes"))
        table.add_row(
            name,
            of["beside"],
            str(of["ranks"]),
            _both(wall, 1e3),
            f"{of['wall_ratio']:.2f}",
            _both(cpu, 1e3),
            f"{of['cpu_ratio']:.2f}",
            _both(sent, 1e-6, 2),
            _both(peak, 1e-6),
        )
    return table


def _both(values: dict[str, float], scale: float, digits: int = 1) -> str:
    return f"{values[OURS] * scale:.{digits}f} / {values[THEIRS] * scale:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
