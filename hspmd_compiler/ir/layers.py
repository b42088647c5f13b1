"""Repeated blocks of a model, and which of them every row belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from .graph import Phase, Row, row_inputs


@dataclass(slots=True)
class LayerMap:
    """Layers by module path; `paths` is their order, `index` also knows parameterless neighbours."""

    paths: tuple[str, ...]
    index: dict[str, int]
    _known: dict[str, int | None] = field(default_factory=dict)

    def layer_of(self, module: str) -> int | None:
        """Layer that the module is, or lies in; None outside all layers."""
        if module not in self._known:
            parents = (module[:end] for end in _prefix_ends(module))
            self._known[module] = next((self.index[p] for p in parents if p in self.index), None)
        return self._known[module]


def _prefix_ends(path: str) -> Iterator[int]:
    yield from (i for i, letter in enumerate(path) if letter == ".")
    yield len(path)


def find_layers(model: nn.Module) -> LayerMap:
    """The children of the outermost lists, sequences or numbered dicts in which at least two own parameters.

    A child without parameters (an activation between linear layers) belongs to the one before it.
    """
    paths: list[str] = []
    index: dict[str, int] = {}
    for container, children in containers(model):
        first = len(paths)
        for name, child in children:
            path = f"{container}.{name}" if container else name
            if owns_parameters(child):
                paths.append(path)
            index[path] = max(len(paths) - 1, first)
    return LayerMap(tuple(paths), index)


def containers(module: nn.Module, path: str = "") -> Iterator[tuple[str, list[tuple[str, nn.Module]]]]:
    """The lists and sequences that hold layers: their paths and their named children, all of them."""
    children = list(module.named_children())
    if _is_list(module) and sum(owns_parameters(child) for _, child in children) >= 2:
        yield path, children
        return
    for name, child in children:
        yield from containers(child, f"{path}.{name}" if path else name)


def _is_list(module: nn.Module) -> bool:
    """Whether its children come one after another: a list, or a dict whose keys are one name and numbers."""
    if isinstance(module, nn.ModuleDict):
        stems = {key.rstrip("0123456789") for key in module}
        return len(stems) == 1 and all(key[-1:].isdigit() for key in module)
    return isinstance(module, (nn.ModuleList, nn.Sequential))


def owns_parameters(module: nn.Module) -> bool:
    """Whether it or a module in it has a parameter."""
    return next(module.parameters(), None) is not None


def assign_layers(
    rows: Sequence[Row], layers: LayerMap, known: Mapping[int, str], numbers: Mapping[int, int]
) -> None:
    """Set `layer` and `module` of every row.

    known: row id -> module path, where the trace has it. numbers: row id -> autograd sequence number.
    A row without a path (the sum of two gradients of one value) goes to the earliest layer among its
    backward inputs, else to the forward row of its number, else to the latest layer of its inputs.
    """
    forward_of: dict[int, Row] = {}
    for row in rows:
        if row.id in known:
            row.module = known[row.id]
            row.layer = layers.layer_of(row.module)
        elif row.op != "placeholder":
            source = _source(row, rows, forward_of.get(numbers.get(row.id, -1)))
            row.module, row.layer = (source.module, source.layer) if source else ("", None)
        if row.phase is Phase.FORWARD and row.id in numbers:
            forward_of[numbers[row.id]] = row


def _source(row: Row, rows: Sequence[Row], forward: Row | None) -> Row | None:
    inputs = [rows[i] for i in row_inputs(row)]
    backward = [r for r in inputs if r.phase is Phase.BACKWARD and r.layer is not None]
    if backward and row.phase is Phase.BACKWARD:
        return min(backward, key=_layer)
    if forward is not None:
        return forward
    inside = [r for r in inputs if r.layer is not None]
    return max(inside, key=_layer) if inside else next((r for r in inputs if r.module), None)


def _layer(row: Row) -> int:
    return -1 if row.layer is None else row.layer
