"""Maximum flow of whole units, by shortest paths in levels (Dinic); capacities may be set anew in between."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class FlowNetwork:
    """Edges 2k and 2k + 1 are an edge and its way back: `room` is what may still flow along each.

    levels: after `fill`, at least 0 where the source still reaches: the source's side of a minimum cut.
    """

    nodes: int
    source: int
    sink: int
    levels: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)
    _room: list[int] = field(default_factory=list)
    _edges: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self._edges = [[] for _ in range(self.nodes)]

    def edge(self, start: int, end: int, capacity: int = 0) -> int:
        """A new edge, by its number."""
        number = len(self._ends)
        self._ends += [end, start]
        self._room += [capacity, 0]
        self._edges[start].append(number)
        self._edges[end].append(number + 1)
        return number

    def flow(self, edge: int) -> int:
        return self._room[edge + 1]

    def limit(self, edge: int, capacity: int) -> None:
        """Set a capacity, no less than what flows."""
        self._room[edge] = capacity - self._room[edge + 1]

    def clear(self) -> None:
        """Let nothing flow."""
        for edge in range(0, len(self._room), 2):
            self._room[edge] += self._room[edge + 1]
            self._room[edge + 1] = 0

    def fill(self) -> None:
        """Let flow, from what flows already, as much as can."""
        while self._find_levels():
            self._fill_levels()

    def _find_levels(self) -> bool:
        self.levels = levels = [-1] * self.nodes
        levels[self.source] = 0
        reached = [self.source]
        for node in reached:
            for edge in self._edges[node]:
                end = self._ends[edge]
                if levels[end] < 0 and self._room[edge]:
                    levels[end] = levels[node] + 1
                    reached.append(end)
        return levels[self.sink] >= 0

    def _fill_levels(self) -> None:
        """Every path that goes up by one level a step, deep first; what leads nowhere is tried once."""
        tried = [0] * self.nodes
        path: list[int] = []
        node = self.source
        while True:
            if node == self.sink:
                node = self._push(path)
            edge = self._onward(node, tried)
            if edge is not None:
                path.append(edge)
                node = self._ends[edge]
            elif path:
                node = self._ends[path.pop() ^ 1]
                tried[node] += 1
            else:
                return

    def _onward(self, node: int, tried: list[int]) -> int | None:
        edges, above = self._edges[node], self.levels[node] + 1
        for at in range(tried[node], len(edges)):
            if self._room[edges[at]] and self.levels[self._ends[edges[at]]] == above:
                tried[node] = at
                return edges[at]
        tried[node] = len(edges)
        return None

    def _push(self, path: list[int]) -> int:
        """Fill a path, and go back to the start of its first full edge."""
        room = self._room
        units = min(room[edge] for edge in path)
        for edge in path:
            room[edge] -= units
            room[edge ^ 1] += units
        full = next(at for at, edge in enumerate(path) if not room[edge])
        start = self._ends[path[full] ^ 1]
        del path[full:]
        return start
