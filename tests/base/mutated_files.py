"""Changes files at random, and reads them as a user would: each must be taken, or refused in our words.

    python tests/base/mutated_files.py --count 1000 --seed 1

Strategies of all formats, clusters, hostfiles, SLURM's variables and whole artifacts, rehashed. Nothing may
hang (SECONDS a file), fill memory (MEMORY), run code (MARK stays absent) or end in an error of ours.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hspmd_compiler.artifact.json_text import fingerprint
from hspmd_compiler.base.trace_file import read_trace
from hspmd_compiler.cli.main import main
from hspmd_compiler.cluster.device_trace import read_device_trace
from hspmd_compiler.cluster.overview import overview
from hspmd_compiler.cluster.read import read_cluster
from hspmd_compiler.cluster.slurm import job_nodes
from hspmd_compiler.errors import HspmdError, InternalError
from hspmd_compiler.pages.timeline_page import timeline_html
from tests.strategy.formats.test_read import TEXTS

SECONDS = 20
MEMORY = 6 << 30
LONGEST = 40_000
"""Of a text before it is changed once more; a line of it may be written a thousand times."""
MARK = Path(tempfile.gettempdir()) / "hspmd_foreign_code_ran"
TEXT_BOMBS = (
    "&a [*a]",
    "2026-11-28",
    "2026-13-45T99:99:99",
    "!!python/object/apply:os.system ['touch " + str(MARK) + "']",
    "!!binary aGVsbG8=",
    "{? [1, 2] : 3}",
    "9" * 5000,
    "-" + "9" * 5000,
    "1e999",
    ".nan",
    "0-999999999",
    "999999999",
    str(2**70),
    "[" * 5000,
    "{" * 500 + "a: 1",
    '"' + "x" * 100000 + '"',
    "\x00",
    "\ufeff",
    "$(touch " + str(MARK) + ")",
    "`touch " + str(MARK) + "`",
    "__import__('os').system('touch " + str(MARK) + "')",
    "1:30",
    "0o17",
    "~",
    "",
)
NUMBERS = (0, 1, -1, 2, 3, 7, 10**6, 10**9, 2**31, 2**62, 2**63, 2**64, 2**70, -(2**63), 10**18, 10**300)
TEXTS_AND_NUMBERS: tuple[Any, ...] = (None, True, False, 0.5, 1e308, "", "x", "float16", "os:system", "../x")
OPERATORS = ("aten.as_strided.default", "aten._reshape_alias.default", "comm")
CONTAINERS: tuple[Any, ...] = ([], {}, [[]], {"": {}}, [None], ["x"] * 50, [0, 999999999])
TAGGED: tuple[Any, ...] = ({"v": 10**9}, {"hole": 10**9}, {"float": "nan"}, {"dtype": "object"})
VALUES = (*NUMBERS, *TEXTS_AND_NUMBERS, *OPERATORS, *CONTAINERS, *TAGGED)


@dataclass(frozen=True)
class Subject:
    """What is changed, and how it is read. change: writes a changed copy, says what was changed."""

    name: str
    change: Callable[[random.Random, Path], str]
    read: Callable[[Path], object]


class TooLong(Exception):
    """A file took longer than SECONDS."""


def mutated_text(rng: random.Random, text: str) -> str:
    """A few characters, words, numbers or lines changed."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        text = text[:LONGEST]
        at, kind = rng.randrange(len(text) + 1), rng.randrange(7)
        if kind == 0:
            text = text[:at]
        elif kind == 1:
            text = text[:at] + text[at + rng.randrange(1, 9) :]
        elif kind == 2:
            text = text[:at] + rng.choice(TEXT_BOMBS) + text[at:]
        elif kind == 3:
            text = (
                text[:at]
                + chr(rng.choice((0, 9, 10, 34, 44, 58, 91, 93, 123, 125, 0xFEFF, 0x202E)))
                + text[at:]
            )
        elif kind == 4:
            places = [index for index, char in enumerate(text) if char.isdigit()]
            if places:
                at = rng.choice(places)
                text = text[:at] + rng.choice(TEXT_BOMBS + tuple(map(str, NUMBERS))) + text[at + 1 :]
        elif kind == 5:
            lines = text.splitlines(keepends=True) or [""]
            line = rng.randrange(len(lines))
            lines[line:line] = [lines[line]] * rng.choice((1, 2, 1000))
            text = "".join(lines)
        else:
            text = f"a: &a [{text.strip()[:50]!r}]\n" + "".join(
                f"b{n}: &b{n} [{', '.join([f'*b{n - 1}' if n else '*a'] * 9)}]\n" for n in range(12)
            )
    return text


def text_subject(name: str, text: str, read: Callable[[Path], object], suffix: str = ".txt") -> Subject:
    def change(rng: random.Random, folder: Path) -> str:
        changed = mutated_text(rng, text)
        encoding = rng.choice(("utf-8",) * 8 + ("utf-16", "utf-8-sig"))
        (folder / f"file{suffix}").write_bytes(changed.encode(encoding, "surrogatepass"))
        return f"{encoding} {changed[:200]!r}"

    return Subject(name, change, lambda folder: read(folder / f"file{suffix}"))


def command(*arguments: str) -> int:
    """A command in this process; an exit code of ours is an error."""
    told = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(told):
        code = main([*arguments])
    if "InternalError" in told.getvalue() or "Traceback" in told.getvalue():
        raise InternalError(told.getvalue()[:600])
    return code


def strategies() -> Iterator[Subject]:
    for form, texts in TEXTS.items():
        for number, text in enumerate(texts):
            suffix = ".json" if text.lstrip().startswith("{") else ".yaml" if "\n-" in text else ".txt"
            read = lambda path: command("strategy", "expand", str(path), "--layers", "2")  # noqa: E731
            yield text_subject(f"{form.value} {number}", text, read, suffix)
            if form.value == "strategy":
                show = lambda path: command("strategy", "show", str(path))  # noqa: E731
                yield text_subject(f"{form.value} {number} shown", text, show, suffix)


def machines() -> Iterator[Subject]:
    cluster = (
        "version: 1\nnodes:\n- address: a\n  devices: [{count: 2, kind: cuda x, memory: 8GiB, flops: 1}]\n"
        "  nic: {bandwidth: 25Gbit, curve: [[8, 1.0e-6], [64, 2.0e-6]]}\n  cores: 4\n  price_per_hour: 3\n"
        "- {address: b, devices: [{ids: '0-1,3', peaks: {float32: 1}}], link: {bandwidth: 1.0e+9}, zone: z}\n"
        "links:\n- {between: [a/0, zone z], bandwidth: 1.0e+9, latency: 1us}\n"
        "calibration: {date: d, torch: t, device: cpu, threads: 1, operators: {m: {fixed_s: 1.0e-6}}, "
        "exchange: {}, collectives: {}, update: {fixed_s: 0}, instruction_s: 0, platform_bytes: 0, "
        "sends: async, layers: [{kind: k, tp: 1, dtype: d, times: [[1, 2, 3]]}]}\n"
    )
    yield text_subject("cluster", cluster, lambda path: overview(read_cluster(path)), ".yaml")
    yield text_subject("hostfile", '# nodes\na slots=2\nb slots=4 kind="cuda x"\n', read_cluster)

    trace = "moments:\n- {step: 0, present: '0-3'}\n- {step: 7, present: [0, 2], slow: {2: 1.5}}\n"
    yield text_subject("device trace", trace, read_device_trace, ".yaml")

    def job(path: Path) -> object:
        names, gpus, tasks, *_ = (*path.read_bytes().decode("utf-8", "replace").split("\n"), "", "", "")
        given = {"SLURM_JOB_NODELIST": names, "SLURM_GPUS_PER_NODE": gpus, "SLURM_TASKS_PER_NODE": tasks}
        return job_nodes(given)

    yield text_subject("slurm", "gpu[01-03,7],login\n\n2(x3),1,1\n", job)
    yield text_subject("slurm gpus", "gpu[1-2]x[1-2]\na100:4\n\n", job)


def timelines() -> Iterator[Subject]:
    """A trace, read and drawn."""
    spans = (
        '"name":"F0","cat":"forward",{},"args":{"mb":0}',
        '"name":"recv","cat":"wait",{},"args":{"peers":[1]}',
    )
    where = '"pid":0,"tid":0,"ts":0.5,"dur":2'
    events = [f'{{"ph":"X",{span.replace("{}", where, 1)}}}' for span in spans]
    events += [
        '{"ph":"M","name":"thread_name","pid":0,"tid":0,"args":{"name":"rank 0: x, pipeline 0 stage 0"}}'
    ]
    events += ['{"ph":"C","name":"memory","pid":1,"tid":3,"ts":1,"args":{"bytes":7}}']

    def draw(path: Path) -> str:
        lines = read_trace(path)
        return timeline_html(*lines, capacity={0: 5}) if lines else ""

    yield text_subject("trace", '{"traceEvents":[\n' + ",\n".join(events) + "\n]}\n", draw, ".json")


def artifact_subject(name: str, source: Path, read: Callable[[Path], object]) -> Subject:
    """One or two values of one JSON file changed, all hashes made again; or bytes of a file changed."""
    files = {str(path.relative_to(source)): path for path in sorted(source.rglob("*")) if path.is_file()}
    content = {path: json.loads(file.read_text()) for path, file in files.items() if path.endswith(".json")}

    def change(rng: random.Random, folder: Path) -> str:
        if rng.random() < 0.1:
            return _damaged(rng, files, folder)
        changed, told = dict(content), []
        for _ in range(rng.choice((1, 1, 1, 2))):
            path = rng.choice(sorted(changed))
            changed[path] = deepcopy(changed[path])
            told.append(f"{path}: {mutated_json(rng, changed, path)}")
        write_artifact(folder, changed, files)
        return "; ".join(told)

    return Subject(name, change, read)


def _damaged(rng: random.Random, files: dict[str, Path], folder: Path) -> str:
    for path, file in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / path)
    path = rng.choice(sorted(files))
    data = bytearray((folder / path).read_bytes())
    if rng.random() < 0.5:
        del data[rng.randrange(len(data)) :]
    else:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    (folder / path).write_bytes(data)
    return f"{path}: bytes"


def mutated_json(rng: random.Random, files: dict[str, Any], path: str) -> str:
    """One place of a file: another value, a key or entry gone, doubled, or moved."""
    places = list(_places(files[path]))
    if not places:
        files[path] = rng.choice(VALUES)
        return "all of it"
    owner, key = rng.choice(places)
    kind = rng.randrange(6)
    old = owner[key]
    if kind == 0:
        del owner[key]
    elif kind == 1 and isinstance(owner, list):
        owner.insert(key, deepcopy(old))
    elif kind == 2 and isinstance(owner, list):
        rng.shuffle(owner)
    elif kind == 3:
        nested: Any = old
        for _ in range(rng.choice((1, 3, 200))):
            nested = [nested]
        owner[key] = nested
    elif type(old) is int:
        owner[key] = rng.choice((old + 1, old - 1, *NUMBERS))
    else:
        owner[key] = deepcopy(rng.choice(VALUES))
    return f"{key!r} was {str(old)[:60]!r}, kind {kind}"


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from _places(item)


def write_artifact(folder: Path, content: dict[str, Any], files: dict[str, Path]) -> None:
    """All files with right hashes, so that nothing but the readers can see what was changed."""
    manifest = content["manifest.json"]
    listed = manifest.get("files") if isinstance(manifest, dict) else None
    for path, file in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path != "manifest.json":
            data = json.dumps(content[path]).encode() if path in content else file.read_bytes()
            target.write_bytes(data)
            if isinstance(listed, dict) and path in listed:
                listed[path] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    if isinstance(manifest, dict):
        with contextlib.suppress(Exception):
            manifest["strategy_fingerprint"] = fingerprint(content["strategy.json"])
        manifest.pop("sha256", None)
        manifest["sha256"] = fingerprint(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def artifacts(home: Path) -> Iterator[Subject]:
    import hspmd_compiler as hspmd
    from hspmd_compiler.models.models import load_model
    from hspmd_compiler.options import OptimizerConfig
    from hspmd_compiler.runtime.start.opening import StartOptions, open_engine
    from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
    from hspmd_compiler.verify.shape.fit import check_rank

    config = OptimizerConfig(weight_decay=0.1, max_grad_norm=1.0)
    model = load_model("mlp", {"layers": "2", "hidden": "4", "features": "3", "classes": "2"})
    stages = (StageSpec((0,), (0, 1)), StageSpec((1,), (1, 2)))
    two = Strategy((PipelineSpec(stages, (1, 1)), PipelineSpec((StageSpec((2,), (0, 2)),), (2,))))
    hspmd.compile(model, strategy=two, optimizer=config).save(home / "two")
    one = Strategy((PipelineSpec((StageSpec((0,), (0, 2)),), (2, 1)),))
    hspmd.compile(model, strategy=one, optimizer=config).save(home / "one")

    def step(folder: Path) -> None:
        """What `hspmd run` does on one rank, without data of its own."""
        import torch

        engine = open_engine(folder, StartOptions(check=check_rank)).engine
        try:
            named = {"float32": torch.float32, "int64": torch.int64}
            inputs = engine.program.inputs.items()
            engine.step({key: torch.zeros(shape, dtype=named[dtype]) for key, (shape, dtype) in inputs})
            engine.state_dict()
        finally:
            engine.transport.close()

    yield artifact_subject("verify", home / "two", lambda folder: command("verify", str(folder), "--values"))
    yield artifact_subject("inspect", home / "two", lambda folder: command("inspect", str(folder)))
    yield artifact_subject("step", home / "one", step)


def subjects(home: Path) -> list[Subject]:
    """Every kind of file."""
    return [*strategies(), *machines(), *timelines(), *artifacts(home)]


def try_one(subject: Subject, rng: random.Random, folder: Path) -> tuple[str, str]:
    """What became of one changed file, and what was changed."""
    told = subject.change(rng, folder)

    def late(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        subject.read(folder)
        found = "taken or refused by its exit code"
    except InternalError as error:
        found = f"INTERNAL {error.what[:300]}"
    except HspmdError:
        found = "refused"
    except TooLong:
        found = "HANGS"
    except MemoryError:
        found = "MEMORY"
    except Exception as error:
        found = f"INTERNAL {type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    if MARK.exists():
        MARK.unlink()
        found = "FOREIGN CODE"
    return found, told


def run(count: int, seed: int, home: Path) -> tuple[Counter[str], list[str]]:
    """So many changed files, in turn of each kind; the outcomes, and every bad one in words."""
    made, rng = subjects(home), random.Random(seed)
    outcomes: Counter[str] = Counter()
    bad: list[str] = []
    for number in range(count):
        # artifacts are the most intricate: every second file is one
        subject = made[-1 - number // 2 % 3] if number % 2 else made[number // 2 % (len(made) - 3)]
        folder = home / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        found, told = try_one(subject, rng, folder)
        outcomes[found.partition(" ")[0]] += 1
        if found not in ("refused", "taken or refused by its exit code"):
            bad.append(f"{number} {subject.name}: {found}: {told}")
    return outcomes, bad


def _main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        outcomes, bad = run(args.count, args.seed, Path(home))
    print("\n".join(bad))
    print(dict(outcomes), f"{time.monotonic() - start:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(_main())
