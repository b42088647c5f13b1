"""Whether a change leaves every program as it was: hashes of what ranks execute, kept and compared.

    python benchmarks/same_programs.py --out BEFORE.json --texts DIR
    python benchmarks/same_programs.py --against BEFORE.json
    python benchmarks/same_programs.py --against BEFORE.json --texts DIR --show NAME

--what names groups (program_cases.py says what is in them), --every K compiles each K-th for a quick sample.
A hash is of values as JSON, so it stays when names of modules or the schema's version change. With --against,
exit code 1: a program differs.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from difflib import unified_diff
from itertools import islice
from pathlib import Path

import torch
from program_cases import GROUPS, Case

from hspmd_compiler.artifact.json_text import to_text
from hspmd_compiler.base.codec import encode
from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.compiler import lower_graph
from hspmd_compiler.program.program_text import program_text

USUAL = "matrix,published,drawn"
TEXT_DEPTH = 4
SHOWN = 200
"""Lines of a difference that are printed."""
NOT_IN_A_FILE = re.compile(r"[^\w.-]+")

Hashes = dict[str, dict[str, str]]


def main() -> int:
    """Compile, hash, and write or compare."""
    args = arguments()
    torch.set_num_threads(1)
    if args.show is not None:
        return show(args.show, args.texts)
    before: Hashes = {
        name: part for file in args.against for name, part in json.loads(file.read_text()).items()
    }
    found: Hashes = {}
    for group in args.what.split(","):
        start = time.process_time()
        count = len(found)
        for case in islice(GROUPS[group](), 0, args.limit, args.every):
            found[case.name], text = compiled(case, with_text=args.texts is not None and not before)
            if before:
                report(case.name, before.get(case.name), found[case.name])
            elif args.texts is not None:
                write_text(args.texts, case.name, text)
        print(
            f"{group}: {len(found) - count} programs, {time.process_time() - start:.0f} CPU s",
            file=sys.stderr,
        )
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    differing = sum(before.get(name) != part for name, part in found.items()) if before else 0
    print(f"{differing} of {len(found)} programs differ" if before else f"{len(found)} programs")
    return int(differing > 0)


def arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--what", default=USUAL, help=f"of {', '.join(GROUPS)}; {USUAL} if not said")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="only each K-th of a group")
    parser.add_argument("--limit", type=int, metavar="N", help="only of the first N of a group")
    parser.add_argument("--out", type=Path, metavar="F", help="write the hashes")
    parser.add_argument("--against", type=Path, nargs="+", default=[], metavar="F", help="compare with these")
    parser.add_argument("--texts", type=Path, metavar="DIR", help="write programs as text; read by --show")
    parser.add_argument(
        "--show", metavar="NAME", help="how the text of one program differs from that of --texts"
    )
    args = parser.parse_args()
    if args.show is not None and args.texts is None:
        parser.error("--show needs --texts")
    return args


def compiled(case: Case, with_text: bool) -> tuple[dict[str, str], str]:
    """A hash of the program and one of its values' layouts, and both as text; a refusal is a result too."""
    try:
        lowered = lower_graph(*case.make(), DeviceKind.CPU)
    except Exception as error:
        return {"program": f"{type(error).__name__}: {str(error).splitlines()[0]}"}, f"{error}\n"
    parts = {"program": encode(lowered.program), "layouts": lowered.layouts.to_json()}
    text = program_text(lowered.program) + "".join(text_lines(parts)) if with_text else ""
    return {name: fingerprint(part) for name, part in parts.items()}, text


def fingerprint(value: object) -> str:
    """Of the content, whatever the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def text_lines(parts: dict[str, object]) -> Iterator[str]:
    """What `program_text` leaves out: boxes, shards and layouts, an item a line."""
    for name, part in parts.items():
        yield f"\n{name}: {to_text(part, TEXT_DEPTH)}"


def report(name: str, before: dict[str, str] | None, now: dict[str, str]) -> None:
    """One line for a program that differs."""
    if before is None:
        print(f"{name}: not among those before")
    elif before != now:
        parts = [part for part in before.keys() | now.keys() if before.get(part) != now.get(part)]
        print(f"{name}: another {' and '.join(sorted(parts))}", flush=True)


def text_file(folder: Path, name: str) -> Path:
    return folder / f"{NOT_IN_A_FILE.sub('_', name)}.txt.gz"


def write_text(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text_file(folder, name).write_bytes(gzip.compress(text.encode(), compresslevel=1, mtime=0))


def show(name: str, folder: Path) -> int:
    """Print how a program differs from its text of before."""
    group = name.partition("/")[0]
    case = next((case for case in GROUPS[group]() if case.name == name), None) if group in GROUPS else None
    if case is None:
        raise SystemExit(f"there is no program {name}")
    before = gzip.decompress(text_file(folder, name).read_bytes()).decode()
    _, now = compiled(case, with_text=True)
    lines = unified_diff(before.splitlines(), now.splitlines(), "before", "now", n=1, lineterm="")
    shown = list(islice(lines, SHOWN))
    print("\n".join(line[:SHOWN] for line in shown) if shown else f"{name} has the same text")
    return int(bool(shown))


if __name__ == "__main__":
    sys.exit(main())
