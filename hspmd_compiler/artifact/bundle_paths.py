"""Names of the files of a bundle beside those of its artifacts; nothing else in it is ever read."""

from __future__ import annotations

import re
from pathlib import Path

from ..program.switch_plan import SwitchScope
from .paths import MANIFEST

FORMAT = "hspmd-bundle"
BUNDLE = "bundle.json"
SWITCH = "switch"
BETWEEN = "--"
"""Between two names in the name of a plan's file, and so in no name."""

NAME = re.compile(r"(?!.*--)[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}(?<![.-])", re.ASCII)
NAME_RULE = "a name has letters, digits, _ . and -; no . or - at its ends, no -- inside"
_PLAN = re.compile(
    rf"{SWITCH}/(.+?){BETWEEN}(.+)\.({'|'.join(scope.value for scope in SwitchScope)})\.json", re.ASCII
)


def is_name(text: str) -> bool:
    """Whether a strategy of a bundle can have this name."""
    return NAME.fullmatch(text) is not None and text.lower() not in (SWITCH, BUNDLE)


def plan_file(source: str, target: str, scope: SwitchScope) -> str:
    """The file of a switch plan."""
    return f"{SWITCH}/{source}{BETWEEN}{target}.{scope.value}.json"


def manifest_file(name: str) -> str:
    """The manifest of a strategy's artifact, which lists all its other files."""
    return f"{name}/{MANIFEST}"


def is_in_bundle(path: str) -> bool:
    """Whether a bundle can list a file of this name."""
    plan = _PLAN.fullmatch(path)
    if plan is not None:
        return is_name(plan[1]) and is_name(plan[2])
    folder, _, file = path.partition("/")
    return file == MANIFEST and is_name(folder)


def is_bundle(directory: str | Path) -> bool:
    """Whether several strategies lie there, and not one artifact."""
    return (Path(directory) / BUNDLE).is_file()
