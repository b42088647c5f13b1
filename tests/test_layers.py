"""The house: which floor may import which, one import name, and a package list that matches the disk."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "hspmd_compiler"
OUTSIDE = ("benchmarks", "examples", "tests")
LINKED = ("cost_models", "passes", "runtime")

FLOORS = {
    "errors": -1,
    "log": -1,
    "bad_values": -1,
    "codec": -1,
    "collection": -1,
    "dtypes": -1,
    "factory_names": -1,
    "forms": -1,
    "limits": -1,
    "name_glob": -1,
    "name_groups": -1,
    "named_import": -1,
    "number_ranges": -1,
    "plain_content": -1,
    "plain_texts": -1,
    "typed": -1,
    "annotations": 0,
    "cluster": 0,
    "strategy": 0,
    "strategy_formats": 0,
    "comm_plan": 0,
    "options": 0,
    "init_program": 0,
    "operator_names": 1,
    "source_lines": 1,
    "shape_only": 1,
    "counter_numbers": 1,
    "kept_arguments": 1,
    "counter_random": 1,
    "program": 1,
    "grouped_product": 1,
    "graph": 1,
    "builtin_models": 1,
    "hf_config": 1,
    "hf_model": 2,
    "models": 2,
    "passes": 2,
    "cost_models": 3,
    "synthesizer": 4,
    "artifact": 5,
    "optimizer_check": 5,
    "compiler": 6,
    "runtime": 6,
    "verify": 6,
    "coverage": 7,
    "twin": 7,
    "proof_data": 7,
    "rule_pages": 7,
    "api": 7,
    "cli": 7,
    "__init__": 7,
    "__main__": 7,
}

# Parts of a low room that grew beyond one file.
ANNEXES = {
    "cluster_read": "cluster",
    "hostfile": "cluster",
    "launch_plan": "cluster",
    "launch_values": "strategy_formats",
    "shell_values": "strategy_formats",
    "slurm": "cluster",
    "strategy_check": "strategy",
    "strategy_form": "strategy",
    "strategy_lines": "strategy_formats",
    "strategy_write": "strategy",
}

# Modules that belong to another room than their folder: what a program is, how the passes write one, and
# schedules, which a strategy names.
PLACED = {
    "artifact.arguments": "program",
    "artifact.attention_kernels": "program",
    "artifact.batch_norm_kernels": "program",
    "artifact.batch_sums": "passes",
    "artifact.check": "program",
    "artifact.check_segment": "program",
    "artifact.class_programs": "program",
    "artifact.convolution_kernels": "program",
    "artifact.image_kernels": "program",
    "artifact.index_check": "program",
    "artifact.kernels": "program",
    "artifact.layout_kernels": "program",
    "artifact.liveness": "program",
    "artifact.lower": "passes",
    "artifact.lower_params": "passes",
    "artifact.lower_stage": "passes",
    "artifact.paths": "program",
    "artifact.program": "program",
    "artifact.program_text": "program",
    "artifact.random_kernels": "program",
    "artifact.stage_tables": "passes",
    "artifact.strategy_ranks": "passes",
    "artifact.value_layouts": "program",
    "artifact.vocab_kernels": "program",
    "passes.schedule": "strategy",
    "passes.schedule_text": "strategy",
    "passes.schedule_time": "strategy",
}

# Beyond the order of the floors: rooms that do not know each other.
BANNED = {
    "strategy": {"cluster", "strategy_formats"},
    "cluster": {"strategy_formats"},
    "passes": {"cost_models"},
    "cost_models": {"passes"},
    "artifact": {"verify"},
    "runtime": {"compiler", "graph", "models", "passes", "cost_models", "synthesizer", "verify"},
}

# Rooms below torch.
WITHOUT_TORCH = {name for name, floor in FLOORS.items() if floor <= 0}

# What a training node never loads, not even through others.
NOT_ON_A_TRAINING_NODE = {
    "graph",
    "models",
    "builtin_models",
    "passes",
    "cost_models",
    "synthesizer",
    "verify",
}
NOT_FOR_TRAINING = {"pulp", "networkx", "transformers"}


def sources() -> Iterator[tuple[str, Path]]:
    """(dotted module name, file) of every module, each file once, linked folders by their real place."""
    for base, top in ((ROOT / PACKAGE, ()), *((ROOT / name, (name,)) for name in LINKED)):
        for path in sorted(base.rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            if top or parts[0] not in LINKED:
                yield ".".join((PACKAGE, *top, *parts)), path


@cache
def imports(module: str, path: Path, late: bool = True) -> list[tuple[int, str]]:
    """(line, absolute dotted name) of every import in a file, type-checking ones left out.

    late: those inside functions too.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree) if late else tree.body:
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.lineno, name) for name in from_names(module, node)]
    return found


def from_names(module: str, node: ast.ImportFrom) -> list[str]:
    """Absolute names of what one `from ... import ...` takes: a module, or something inside one."""
    head = module.split(".")[: -node.level] if node.level else []
    base = ".".join([*head, *([node.module] if node.module else [])])
    return [f"{base}.{alias.name}" for alias in node.names]


def room(name: str) -> str | None:
    """The room of a dotted name inside the package, None for a name outside it."""
    parts = name.split(".")
    if parts[0] != PACKAGE:
        return None
    first = parts[1] if len(parts) > 1 else "__init__"
    return PLACED.get(".".join(parts[1:3])) or ANNEXES.get(first, first)


def test_every_room_has_a_floor() -> None:
    unknown = {f"{room(module)} ({path.relative_to(ROOT)})" for module, path in sources()}
    unknown = {text for text in unknown if text.split(" ")[0] not in FLOORS}
    assert not unknown, f"rooms without a floor: {sorted(unknown)}"


def test_floors_import_only_lower_ones() -> None:
    broken = []
    for module, path in sources():
        here = str(room(module))
        for line, name in imports(module, path):
            there = room(name)
            if there is None or there == here or here not in FLOORS or there not in FLOORS:
                continue
            if FLOORS[there] > FLOORS[here] or there in BANNED.get(here, set()):
                broken.append(f"{path.relative_to(ROOT)}:{line}: {here} imports {there}")
    assert not broken, "\n".join(broken)


def test_low_rooms_are_free_of_torch() -> None:
    broken = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for module, path in sources()
        for line, name in imports(module, path)
        if room(module) in WITHOUT_TORCH and name.split(".")[0] in {"torch", *NOT_FOR_TRAINING}
    ]
    assert not broken, "\n".join(broken)


def test_a_training_node_loads_no_compiler() -> None:
    files = dict(sources())
    runtime = [module for module in files if room(module) == "runtime"]
    reached: dict[str, str] = dict.fromkeys(runtime, "runtime")
    broken = []
    while runtime:
        module = runtime.pop()
        always = {name for _, name in imports(module, files[module], late=False)}
        for _, name in imports(module, files[module]):
            inner = next((one for one in (name, name.rpartition(".")[0]) if one in files), None)
            foreign = name in always and name.split(".")[0] in NOT_FOR_TRAINING
            if room(name) in NOT_ON_A_TRAINING_NODE or foreign:
                broken.append(f"{module} imports {name}, and is reached by {reached[module]}")
            elif inner is not None and inner not in reached:
                reached[inner] = module
                runtime.append(inner)
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("name", LINKED)
def test_links_lead_to_the_root_folders(name: str) -> None:
    link = ROOT / PACKAGE / name
    assert link.is_symlink(), f"{link} is not a link"
    assert link.resolve() == ROOT / name


def test_package_list_matches_the_folders() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        setuptools = tomllib.load(file)["tool"]["setuptools"]
    on_disk = {".".join(module.split(".")[:-1]) for module, _ in sources()}
    assert sorted(setuptools["packages"]) == sorted(on_disk)
    assert setuptools["package-dir"] == {f"{PACKAGE}.{name}": name for name in LINKED}


def test_every_package_has_an_init() -> None:
    folders = {path.parent for _, path in sources()}
    missing = sorted(
        str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").is_file()
    )
    assert not missing, f"folders without __init__.py: {missing}"


def test_links_lost_still_imports_one_name(tmp_path: Path) -> None:
    """Without the links, as after a checkout that turns them into text files, the root folders serve."""
    package = tmp_path / PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text((ROOT / PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    for name in LINKED:
        (package / name).write_text(f"../{name}")
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"HOME = {name!r}\n")
    code = "; ".join(f"import {PACKAGE}.{name} as m; print(m.HOME)" for name in LINKED)
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == list(LINKED)


def test_bare_names_are_not_imported() -> None:
    outside = [("outside", path) for top in OUTSIDE for path in sorted((ROOT / top).rglob("*.py"))]
    broken = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for module, path in (*sources(), *outside)
        for line, name in imports(module, path)
        if name.split(".")[0] in LINKED
    ]
    assert not broken, "\n".join(broken)
