"""Compiles an unmodified model into one training program per rank, for unequal devices."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if not (Path(__file__).parent / "passes").is_dir():  # links lost, as in a zip: the folders lie beside us
    __path__.append(str(Path(__file__).parents[1]))

if TYPE_CHECKING:
    from .api import compile, compile_bundle, load, plan
    from .artifact.proved_loss import LossKind
    from .compiled_bundle import BundleEntry
    from .ir.comm_marker import comm
    from .rules.own_rules import rule, rule_for
    from .runtime.batches.buckets import BucketFill, CountedLabels, LengthBucket

__version__ = "0.1.0"

__all__ = [
    "BucketFill",
    "BundleEntry",
    "CountedLabels",
    "LengthBucket",
    "LossKind",
    "__version__",
    "comm",
    "compile",
    "compile_bundle",
    "load",
    "plan",
    "rule",
    "rule_for",
]

_HOMES = {
    "BucketFill": "runtime.batches.buckets",
    "BundleEntry": "compiled_bundle",
    "CountedLabels": "runtime.batches.buckets",
    "LengthBucket": "runtime.batches.buckets",
    "LossKind": "artifact.proved_loss",
    "comm": "ir.comm_marker",
    "compile": "api",
    "compile_bundle": "api",
    "load": "api",
    "plan": "api",
    "rule": "rules.own_rules",
    "rule_for": "rules.own_rules",
}


def __getattr__(name: str) -> object:
    """The public names, imported on first use: a training node never loads the compiler."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
