"""The names of factories: the one to import a factory by, and the one that people read."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping

NAMELESS = ("__main__", "builtins")
"""Modules that stand for another one in every process."""


def attribute(module: object, name: str) -> object:
    """What a dotted name is in a module, such as a static method; None where there is none."""
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def importable_name(factory: Callable[..., object]) -> str | None:
    """`package.module:factory` where that is this very callable, else None: a lambda, an object, a local."""
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module in NAMELESS:
        return None
    found = attribute(sys.modules.get(module), name)
    return f"{module}:{name}" if found is not None and found == factory else None


def call_of(factory: Callable[..., object]) -> tuple[Callable[..., object], Mapping[str, object]]:
    """What is called, and with which arguments by name; a partial that can't be taken apart is itself."""
    if not isinstance(factory, functools.partial):
        return factory, {}
    try:
        bound = inspect.signature(factory.func).bind_partial(*factory.args, **factory.keywords)
    except (TypeError, ValueError):
        return factory, {}
    kinds = {bound.signature.parameters[name].kind for name in bound.arguments}
    by_name = kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    return (factory.func, bound.arguments) if by_name else (factory, {})


def shown_name(factory: Callable[..., object]) -> str:
    """For people: what it is, and where it was written."""
    if isinstance(factory, functools.partial):
        return f"functools.partial of {shown_name(factory.func)}"
    named = factory if hasattr(factory, "__qualname__") else type(factory)
    text = f"{getattr(factory, '__module__', '?')}:{getattr(named, '__qualname__', named)}"
    return text if named is factory else f"an object of {text}"
