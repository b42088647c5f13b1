"""Type inference on dims: terms are joined where operators say so, and refined where views cut them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd

from ...errors import InternalError
from .term_store import Form, TermStore


class DimTerms(TermStore):
    """Terms, what was seen of them, and how they are joined (`unify`) and refined (`regroup`, `cut`)."""

    def mark_whole(self, term: int, reason: str) -> None:
        """Forbid splits of everything inside a term."""
        for atom in self.atoms(term):
            self._facts[atom].set_whole(reason, self.row)

    def mark_heads(self, term: int) -> None:
        """Say that attention treats the elements of a term independently."""
        for atom in self.atoms(term):
            self._facts[atom].heads = True

    def mark_made(self, term: int, row: int) -> None:
        """Say that a parameter product gives this dim."""
        for atom in self.atoms(term):
            self._facts[atom].made.append(row)

    def mark_used(self, term: int, row: int) -> None:
        """Say that a parameter product sums over this dim."""
        for atom in self.atoms(term):
            self._facts[atom].used.append(row)

    def mark_vocab(self, term: int) -> None:
        """Say that this dim is split by a pattern: classes of a loss, or rows of a looked-up table."""
        for atom in self.atoms(term):
            self._facts[atom].vocab = True

    def unify(self, a: int, b: int) -> int:
        """Say that two dims are the same one; returns the one that knows more."""
        a, b = self.find(a), self.find(b)
        if a == b or self.is_free(b):
            return a
        if self.is_free(a):
            return b
        if self.sizes[a] != self.sizes[b]:
            raise InternalError(f"dims of size {self.sizes[a]} and {self.sizes[b]} can't be the same one")
        if self._forms[b] is Form.ATOM:
            return self._bind(b, a)
        if self._forms[a] is Form.ATOM:
            return self._bind(a, b)
        return self._unify_parts(a, b)

    def _bind(self, atom: int, term: int) -> int:
        """Let an atom be a term."""
        if self._forms[term] is Form.ATOM:
            atom, term = max(atom, term), min(atom, term)
        facts = self._facts.pop(atom)
        term = self._solid(term)
        for inner in self.atoms(term):
            self._facts[inner].merge(facts)
        self._links[atom] = term
        return term

    def _solid(self, term: int) -> int:
        """A term with atoms where it was FREE: those of a product stand against repeated copies."""
        root = self.find(term)
        if not self._has_free(root):
            return root
        if self._forms[root] is Form.FREE:
            return self.atom(self.sizes[root])
        if self._forms[root] is Form.CONCAT:
            return self.concat([self._solid(part) for part in self.segments(root)])
        parts = [self._solid(part) for part in self.factors(root)]
        for part, old in zip(parts, self.factors(root), strict=True):
            if self.is_free(old):
                self._facts[part].repeat = True
        return self.product(parts)

    def _unify_parts(self, a: int, b: int) -> int:
        if self._forms[a] is Form.PRODUCT and self._forms[b] is Form.PRODUCT:
            joined = self._unify_factors(a, b)
        else:
            joined = None if self._is_shifted(a, b) else self._unify_segments(a, b)
        if joined is None:
            self.mark_whole(a, "its parts are regrouped across their boundaries")
            self.mark_whole(b, "its parts are regrouped across their boundaries")
        return a if joined is None else joined

    def _is_shifted(self, a: int, b: int) -> bool:
        """Whether one segment stands at two places, as in x[1:] + x[:-1]."""
        places: dict[int, int] = {}
        for term in (a, b):
            start = 0
            for segment in self.segments(term):
                if not self.is_free(segment) and places.setdefault(segment, start) != start:
                    return True
                start += self.sizes[segment]
        return False

    def _unify_segments(self, a: int, b: int) -> int:
        bounds = sorted({*self._bounds(a), *self._bounds(b)})
        spans = zip([0, *bounds], bounds, strict=False)
        return self.concat([self.unify(self.cut(a, *span), self.cut(b, *span)) for span in spans])

    def _bounds(self, term: int) -> Iterator[int]:
        end = 0
        for segment in self.segments(term):
            end += self.sizes[segment]
            yield end

    def _unify_factors(self, a: int, b: int) -> int | None:
        left, right = self.factors(a)[::-1], self.factors(b)[::-1]
        if left == right:
            return a
        joined = []
        while left and right:
            size = gcd(self.sizes[left[-1]], self.sizes[right[-1]])
            x, y = self._take(left, size), self._take(right, size)
            if x is None or y is None:
                return None
            joined.append(self._meet(x, y))
        return self.product(joined)

    def _meet(self, x: int, y: int) -> int:
        for mine, other in ((x, y), (y, x)):
            if self.is_free(other) and self.form(mine) is Form.ATOM:
                self.facts(mine).repeat = True
        return self.unify(x, y)

    def _take(self, stack: list[int], size: int) -> int | None:
        """Pop a factor of exactly `size`, cutting the one on top; None if that is impossible."""
        if size == 1:
            return None
        stack.extend(reversed(self.factors(stack.pop())))
        top = stack.pop()
        if self.sizes[top] == size:
            return top
        if size % self.sizes[top] == 0:
            inner = self._take(stack, size // self.sizes[top])
            return None if inner is None else self.product((top, inner))
        if self._forms[top] is Form.CONCAT or self.sizes[top] % size:
            return None
        outer, rest = self._factor_out(top, size)
        stack.append(rest)
        return outer

    def _factor_out(self, term: int, size: int) -> tuple[int, int]:
        inner_size = self.sizes[term] // size
        if self.is_free(term):
            return self.free(size), self.free(inner_size)
        facts = self._facts.pop(term)
        outer, inner = self.atom(size), self.atom(inner_size)
        for part in (outer, inner):
            self._facts[part].merge(facts)
        self._forms[term], self._parts[term] = Form.PRODUCT, (outer, inner)
        return outer, inner

    def regroup(self, terms: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...] | None:
        """The terms of a view: the same elements in other dims; None if no factors fit."""
        stack = [factor for term in terms for factor in self.factors(term)]
        stack.reverse()
        groups = []
        for size in sizes:
            group: list[int] = []
            while size > 1 and stack:
                factor = self._take(stack, gcd(size, self.sizes[stack[-1]]))
                if factor is None:
                    return None
                group.append(factor)
                size //= self.sizes[factor]
            groups.append(self.product(group) if size == 1 else self.free(size))
        return tuple(groups)

    def cut(self, term: int, low: int, high: int) -> int:
        """The part [low, high) of a dim."""
        root = self.find(term)
        if (low, high) == (0, self.sizes[root]):
            return root
        if self._forms[root] is Form.FREE or low >= high:
            return self.free(max(high - low, 0))
        if self._forms[root] is Form.PRODUCT:
            return self._cut_product(root, low, high)
        if self._forms[root] is Form.ATOM:
            self._cut_atom(root, low, high)
        return self._cut_segments(root, low, high)

    def _cut_atom(self, atom: int, low: int, high: int) -> None:
        facts = self._facts.pop(atom)
        lengths = (low, high - low, self.sizes[atom] - high)
        parts = tuple(self.atom(length) for length in lengths if length)
        for part in parts:
            if not self.is_free(part):
                self._facts[part].merge(facts)
        self._forms[atom], self._parts[atom] = Form.CONCAT, parts

    def _cut_segments(self, term: int, low: int, high: int) -> int:
        kept, start = [], 0
        for segment in self.segments(term):
            size = self.sizes[segment]
            first, last = max(low - start, 0), min(high - start, size)
            if first < last:
                kept.append(self.cut(segment, first, last))
            start += size
        return self.concat(kept)

    def _cut_product(self, term: int, low: int, high: int) -> int:
        outer, *rest = self.factors(term)
        inner = self.sizes[term] // self.sizes[outer]
        if low % inner == 0 and high % inner == 0:
            return self.product((self.cut(outer, low // inner, high // inner), *rest))
        start = low // inner * inner
        if high <= start + inner:
            self.mark_whole(outer, "one element of it is picked")
            return self.cut(self.product(rest), low - start, high - start)
        self.mark_whole(term, "it is cut across its parts")
        return self.free(high - low)
