"""Terms that say what a tensor dimension is made of: products and concatenations of atoms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod


class Form(Enum):
    """What a term is.

    ATOM: not known to have parts. FREE: never split where it comes from (batch, sequence, constants,
    a broadcast dim), only sliced where it meets something split. PRODUCT: row-major factors.
    CONCAT: segments side by side.
    """

    ATOM = "atom"
    FREE = "free"
    PRODUCT = "product"
    CONCAT = "concat"


@dataclass(slots=True)
class Facts:
    """What was seen of an atom.

    whole: why it must not be split, "" if it may; whole_at: the row that said so first. repeat: it
    stood against copies that the other side repeats (the query heads that share one key head). made:
    rows of parameter products that give it, and of lookups over it. used: rows of parameter products
    that sum over it.
    """

    whole: str = ""
    whole_at: int | None = None
    heads: bool = False
    vocab: bool = False
    repeat: bool = False
    made: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)

    def merge(self, other: Facts) -> None:
        """Add what was seen of another atom that is the same one."""
        self.heads |= other.heads
        self.vocab |= other.vocab
        self.repeat |= other.repeat
        self.set_whole(other.whole, other.whole_at)
        self.made += other.made
        self.used += other.used

    def set_whole(self, reason: str, row: int | None) -> None:
        """Keep the first reason."""
        if reason and not self.whole:
            self.whole, self.whole_at = reason, row


class TermStore:
    """All terms, each an int. row: the row whose dims are being inferred.

    Terms of size 1 are all the same FREE term. A refined atom keeps its int and changes its form,
    so every dim that holds it sees the refinement.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.row: int | None = None
        self._forms: list[Form] = []
        self._links: list[int] = []
        self._parts: list[tuple[int, ...]] = []
        self._facts: dict[int, Facts] = {}
        self._known: dict[tuple[Form, tuple[int, ...]], int] = {}
        self._frees: dict[int, int] = {}

    def _new(self, form: Form, size: int, parts: tuple[int, ...] = ()) -> int:
        self.sizes.append(size)
        self._forms.append(form)
        self._links.append(len(self._links))
        self._parts.append(parts)
        return len(self.sizes) - 1

    def atom(self, size: int) -> int:
        """A new atom."""
        if size < 2:
            return self.free(size)
        term = self._new(Form.ATOM, size)
        self._facts[term] = Facts()
        return term

    def free(self, size: int) -> int:
        """The FREE term of a size."""
        found = self._frees.get(size)
        if found is None:
            found = self._frees[size] = self._new(Form.FREE, size)
        return found

    def product(self, parts: Sequence[int]) -> int:
        """The row-major product of terms."""
        flat: list[int] = []
        for part in parts:
            for factor in self.factors(part):
                if flat and self.is_free(factor) and self.is_free(flat[-1]):
                    flat[-1] = self.free(self.sizes[flat[-1]] * self.sizes[factor])
                else:
                    flat.append(factor)
        return self._join(Form.PRODUCT, tuple(flat), prod(self.sizes[part] for part in flat))

    def concat(self, parts: Sequence[int]) -> int:
        """Terms side by side; empty ones are dropped."""
        flat: list[int] = []
        for part in parts:
            for segment in self.segments(part):
                if flat and self.is_free(segment) and self.is_free(flat[-1]):
                    flat[-1] = self.free(self.sizes[flat[-1]] + self.sizes[segment])
                elif self.sizes[segment]:
                    flat.append(segment)
        return self._join(Form.CONCAT, tuple(flat), sum(self.sizes[part] for part in flat))

    def _join(self, form: Form, parts: tuple[int, ...], size: int) -> int:
        if len(parts) < 2:
            return parts[0] if parts else self.free(size)
        found = self._known.get((form, parts))
        if found is None:
            found = self._known[form, parts] = self._new(form, size, parts)
        return found

    def find(self, term: int) -> int:
        """The term that stands for `term` and all it was joined with."""
        links = self._links
        while links[term] != term:
            links[term] = links[links[term]]
            term = links[term]
        return term

    def form(self, term: int) -> Form:
        """The form of a term as it is now."""
        return self._forms[self.find(term)]

    def is_free(self, term: int) -> bool:
        """Whether a term is FREE."""
        return self._forms[term] is Form.FREE

    def facts(self, atom: int) -> Facts:
        """What was seen of an atom."""
        return self._facts[self.find(atom)]

    def factors(self, term: int) -> list[int]:
        """The factors of a term, outermost first; none of them is a product or of size 1."""
        return self._flatten(term, Form.PRODUCT, 1)

    def segments(self, term: int) -> list[int]:
        """The segments of a term in order; none of them is a concatenation or empty."""
        return self._flatten(term, Form.CONCAT, 0)

    def _flatten(self, term: int, form: Form, nothing: int) -> list[int]:
        root = self.find(term)
        if self._forms[root] is not form:
            return [] if self.sizes[root] == nothing else [root]
        return [item for part in self._parts[root] for item in self._flatten(part, form, nothing)]

    def atoms(self, term: int) -> Iterator[int]:
        """Every atom inside a term."""
        root = self.find(term)
        if self._forms[root] is Form.ATOM:
            yield root
        for part in self._parts[root]:
            yield from self.atoms(part)

    def _has_free(self, term: int) -> bool:
        root = self.find(term)
        return self.is_free(root) or any(self._has_free(part) for part in self._parts[root])
