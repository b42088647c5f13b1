"""A batch as a user would write it for a model."""

from __future__ import annotations

import inspect

from torch import nn

PLAIN = "{'input_ids': ..., 'labels': ...}"


def spelled_batch(model: nn.Module | None) -> str:
    """A dict with the names that `forward` gives to its arguments: `{'x': ..., 'y': ...}`."""
    try:
        parameters = [] if model is None else list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return PLAIN
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needed = [p.name for p in by_name if p.default is p.empty] or [p.name for p in by_name]
    return f"{{{', '.join(f'{name!r}: ...' for name in needed)}}}" if 0 < len(needed) <= 8 else PLAIN
