"""The house: which room may import which, no circles, small folders, one import name, a true package list."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "hspmd_compiler"
OUTSIDE = ("benchmarks", "examples", "tests")
LINKED = ("cost_models", "passes", "runtime")
MOST_FILES = 24
"""Modules that a folder may hold; a fuller one gets folders inside."""

FLOORS = {
    "__init__": 0,  # its imports are lazy
    "errors": 1,
    "base": 2,
    "options": 3,
    "layout": 4,
    "annotations": 5,
    "strategy": 6,
    "cluster": 7,
    "program": 8,
    "artifact": 9,
    "switching": 10,
    "ir": 10,
    "rules": 11,
    "trace": 12,
    "models": 13,
    "passes": 14,
    "cost_models": 15,
    "synthesizer": 16,
    "pages": 17,
    "compiler": 18,
    "runtime": 18,
    "profiling": 19,
    "verify": 19,
    "coverage": 20,
    "compiled_bundle": 20,
    "api": 21,
    "cli": 22,
    "__main__": 23,
}
"""A room imports itself and lower ones; two on one floor do not know each other."""

# Narrower than the order of the floors.
ONLY = {
    "base": {"errors"},
    "layout": {"errors", "base"},
    "program": {"errors", "base", "layout"},
    "artifact": {"errors", "base", "options", "layout", "program"},
    "switching": {"errors", "base", "cluster", "program"},
    "runtime": {"__init__", "errors", "base", "options", "layout", "program", "artifact"},
}
BANNED = {"cost_models": {"passes", "trace", "models"}}

WITHOUT_TORCH = {"errors", "base", "options", "layout", "annotations", "strategy", "cluster"}
NOT_FOR_TRAINING = {"pulp", "networkx", "transformers"}

# What a training node loads, also through others.
ON_A_TRAINING_NODE = ONLY["runtime"] | {"runtime"}


def sources() -> Iterator[tuple[str, Path]]:
    """(dotted module name, file) of every module, each file once, linked folders by their real place."""
    for base, top in ((ROOT / PACKAGE, ()), *((ROOT / name, (name,)) for name in LINKED)):
        for path in sorted(base.rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            if top or parts[0] not in LINKED:
                yield ".".join((PACKAGE, *top, *parts)), path


@cache
def parsed(path: Path) -> tuple[ast.Module, tuple[ast.AST, ...]]:
    """A file's tree, and of all nodes in it those that import, or may hold such."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tree, tuple(
        node for node in ast.walk(tree) if isinstance(node, ast.If | ast.Import | ast.ImportFrom)
    )


@cache
def imports(module: str, path: Path, late: bool = True) -> list[tuple[int, str]]:
    """(line, absolute dotted name) of every import in a file, type-checking ones left out.

    late: those inside functions too.
    """
    tree, nodes = parsed(path)
    typing_only = {
        inner
        for node in nodes
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found: list[tuple[int, str]] = []
    for node in nodes if late else tree.body:
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
    return "__init__" if first.startswith("__") and first != "__main__" else first


def test_every_room_has_a_floor() -> None:
    unknown = sorted(str(path.relative_to(ROOT)) for module, path in sources() if room(module) not in FLOORS)
    assert not unknown, f"in no room of FLOORS: {unknown}"


def test_rooms_import_only_lower_ones() -> None:
    broken = []
    for module, path in sources():
        here = str(room(module))
        for line, name in imports(module, path):
            there = room(name)
            if there is None or there == here:
                continue
            allowed = ONLY.get(here, {one for one in FLOORS if FLOORS[one] < FLOORS[here]})
            if there not in allowed - BANNED.get(here, set()):
                broken.append(f"{path.relative_to(ROOT)}:{line}: {here} imports {there}")
    assert not broken, "\n".join(broken)


def test_modules_do_not_import_in_circles() -> None:
    files = dict(sources())
    graph: Mapping[str, set[str]] = {
        module: {
            one
            for _, name in imports(module, path, late=False)
            for one in (name, name.rpartition(".")[0])
            if one in files and one != module
        }
        for module, path in files.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


def test_folders_are_small() -> None:
    counts = Counter(path.parent.relative_to(ROOT) for _, path in sources() if path.name != "__init__.py")
    full = {str(folder): count for folder, count in counts.items() if count > MOST_FILES}
    assert not full, f"folders of more than {MOST_FILES} modules: {full}"


def test_every_folder_says_what_it_is_for() -> None:
    """Its __init__ has a text: what the folder is for, and what enters."""
    silent = []
    for folder in sorted({path.parent for _, path in sources()}):
        init = folder / "__init__.py"
        text = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) if init.is_file() else None
        if not text or (folder != ROOT / PACKAGE and "\n\nEnters: " not in text):
            silent.append(str(folder.relative_to(ROOT)))
    assert not silent, f"folders whose __init__ does not say what they are for and what enters: {silent}"


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
            if (room(name) or "runtime") not in ON_A_TRAINING_NODE or foreign:
                broken.append(f"{module} imports {name}, and is reached by {reached[module]}")
            elif inner is not None and inner not in reached:
                reached[inner] = module
                runtime.append(inner)
    assert not broken, "\n".join(broken)


def test_a_class_has_its_name_for_itself() -> None:
    """No other class and no alias of a type is called so; names of one module's own begin with `_`."""
    owners: dict[str, list[str]] = {}
    classes: set[str] = set()
    for _, path in sources():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                classes.add(node.name)
            for name in _named(node):
                owners.setdefault(name, []).append(str(path.relative_to(ROOT)))
    shared = {name: owners[name] for name in sorted(classes) if len(owners[name]) > 1 and name[0] != "_"}
    assert not shared, "\n".join(f"{name}: {', '.join(paths)}" for name, paths in shared.items())


def _named(node: ast.stmt) -> list[str]:
    """Names of classes and aliases that a statement gives; type variables mean nothing of their own."""
    if isinstance(node, ast.ClassDef):
        return [node.name]
    if not isinstance(node, ast.Assign) or "TypeVar(" in ast.unparse(node.value):
        return []
    return [target.id for target in node.targets if isinstance(target, ast.Name) and not target.id.isupper()]


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
