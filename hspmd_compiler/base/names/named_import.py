"""A module that the user named, imported; what lies in an artifact's folder never is."""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ...errors import OptionError

LISTINGS = (("manifest.json", b"hspmd-artifact"), ("bundle.json", b"hspmd-bundle"))
MANIFEST_LIMIT = 1 << 28


def import_named(module: str) -> ModuleType:
    """Import a module; the current folder is importable, unless it is or lies in an artifact.

    An artifact is data that may come from anybody, and so is what somebody put beside its files: a module
    there is an OptionError, wherever Python finds it. Other errors are those of the import.
    """
    here = Path.cwd()
    if artifact_around(here) is None and "" not in sys.path and str(here) not in sys.path:
        sys.path.insert(0, str(here))
    top = module.partition(".")[0]
    if top and top not in sys.modules:
        _check_place(module, top)
    return import_module(module)


def artifact_around(folder: Path) -> Path | None:
    """The artifact that a folder is or lies in."""
    resolved = folder.resolve()
    return next((each for each in (resolved, *resolved.parents) if _is_artifact(each)), None)


def _check_place(module: str, top: str) -> None:
    """Looks where a module would come from; nothing is run for that."""
    found = importlib.util.find_spec(top)
    places = [] if found is None else [found.origin, *(found.submodule_search_locations or ())]
    for place in places:
        artifact = None if place is None or not Path(place).exists() else artifact_around(Path(place).parent)
        if artifact is not None:
            raise OptionError(
                f"the module {module!r} lies in an artifact",
                details=[("found", str(place)), ("artifact", str(artifact))],
                rule="an artifact is data: no code is taken from its folder",
                fix="keep your own code in another folder, and start the command there",
            )


def _is_artifact(folder: Path) -> bool:
    return any(_holds(folder / name, form) for name, form in LISTINGS)


def _holds(file: Path, form: bytes) -> bool:
    try:
        with file.open("rb") as opened:
            return form in opened.read(MANIFEST_LIMIT)
    except OSError:
        return False
