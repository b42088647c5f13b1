"""What the ranks of two strategies hold and need of each parameter, as keys: equal ones are planned once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..program.program import RankProgram, Shard
from ..program.state.state_elements import Gradients, gradients_of

Programs = Mapping[int, RankProgram]
"""By world rank."""
RankRow = tuple[int, int]
"""A world rank, and the number of the piece that it has of a parameter."""
KeptKey = tuple[tuple[RankRow, ...], tuple[RankRow, ...]]
"""The rows of a parameter before and after; parameters with the same key are held and needed alike."""


@dataclass(frozen=True, slots=True)
class KeptPiece:
    """A shard, whatever its name, and the type that its gradient is summed in; empty: it gets none."""

    shard: Shard
    gradient: str

    @property
    def gradients(self) -> Gradients:
        return {self.shard.name: self.gradient} if self.gradient else {}


@dataclass(slots=True)
class KeptState:
    """pieces: one of each number. names: the parameters of each key. order: of all, as programs have them."""

    pieces: list[KeptPiece] = field(default_factory=list)
    names: dict[KeptKey, list[str]] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, before: Programs, after: Programs) -> KeptState:
        made = cls()
        numbers = _PieceNumbers(made.pieces)
        given, wanted = numbers.rows(before), numbers.rows(after)
        made.order = {name: index for index, name in enumerate(dict.fromkeys((*wanted, *given)))}
        for name in made.order:
            key = (tuple(given.get(name, ())), tuple(wanted.get(name, ())))
            made.names.setdefault(key, []).append(name)
        return made


@dataclass(slots=True)
class _PieceNumbers:
    """Shards as numbers: by identity where ranks share them, else by what they hold."""

    pieces: list[KeptPiece]
    _by_id: dict[tuple[int, str], int] = field(default_factory=dict)
    _by_content: dict[object, int] = field(default_factory=dict)
    _gradients: dict[tuple[int, ...], Gradients] = field(default_factory=dict)

    def rows(self, programs: Programs) -> dict[str, list[RankRow]]:
        """By parameter, every rank that has a piece of it."""
        found: dict[str, list[RankRow]] = {}
        for world_rank, program in sorted(programs.items()):
            gradients = self._gradients_of(program)
            for shard in program.shards:
                name = shard.name
                number = self._number(shard, gradients.get(name, ""))
                found.setdefault(name, []).append((world_rank, number))
        return found

    def _gradients_of(self, program: RankProgram) -> Gradients:
        key = tuple(map(id, program.grad_buckets))
        if key not in self._gradients:
            self._gradients[key] = gradients_of(program)
        return self._gradients[key]

    def _number(self, shard: Shard, gradient: str) -> int:
        key = (id(shard), gradient)
        found = self._by_id.get(key)
        if found is None:
            owned = shard.owned if shard.zero else ()
            whole, types = (shard.whole_shape, shard.whole_view), (shard.dtype, shard.compute, gradient)
            content = (whole, shard.boxes, owned, shard.zero, types)
            found = self._by_content.setdefault(content, len(self.pieces))
            if found == len(self.pieces):
                self.pieces.append(KeptPiece(shard, gradient))
            self._by_id[key] = found
        return found
