"""Rows that a model sorts by expert, multiplies in groups and puts back are left where they are.

A mixture of experts sorts its rows, those of all samples together, so that the rows of an expert are one
product. What is done to sorted rows is done to each alone. So the sorting goes: each sorted value becomes the
same value in the order from before, and a product of groups becomes `hspmd.expert_mm`, which is told the
expert of each row. Then every sample keeps its rows, and the batch can be cut.

All that sorted values reach has to be known; where something is not, the sort and what follows it stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...ir.fx_convert import GETITEM
from ...ir.graph import LogicalGraph, Ref, Row, refs_of
from ...ir.own_names import EXPERT_GRAD, EXPERT_MM
from ...ir.own_operators import GROUPED, GROUPED_BACKWARD
from ...ir.prune import prune, with_rows
from ...rules.rules import items
from .decompose import changed
from .row_by_row import NotAlone, rows_of_result

SORTS = ("aten.sort.default", "aten.sort.stable")
INDEX, PUT, COPY = "aten.index.Tensor", "aten.index_put.default", "aten._to_copy.default"
ZEROS = ("aten.new_zeros.default", "aten.zeros.default", "aten.zeros_like.default")
BLANK = (*ZEROS, "aten.empty_like.default", "aten.new_empty.default")


@dataclass(frozen=True, slots=True)
class SortedRows:
    """A value in sorted order. dim: of its rows. keys: whether it is what was sorted."""

    dim: int = 0
    keys: bool = False


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The places from which sorted rows come, divided by `per`."""

    per: int = 1


@dataclass(frozen=True, slots=True)
class OrderBack:
    """The places to which sorted rows go: the inverse of the order."""


@dataclass(frozen=True, slots=True)
class ExpertCounts:
    """How many rows each of so many experts has. ends: added up."""

    experts: int
    ends: bool = False


Followed = SortedRows | SortOrder | OrderBack | ExpertCounts


def without_sorting(graph: LogicalGraph) -> LogicalGraph:
    """The graph with products of each row and its expert's matrix, not of groups of sorted rows."""
    done = 0
    while any(row.op in (GROUPED, GROUPED_BACKWARD) for row in graph.rows):
        sorts = [row.id for row in graph.rows if row.op in SORTS and _is_plain(row, graph)]
        if done >= len(sorts):
            break
        try:
            graph = prune(_Unsorting(graph, sorts[done]).graph())
        except NotAlone:
            done += 1
    return graph


def _is_plain(row: Row, graph: LogicalGraph) -> bool:
    """Whether it sorts a list of whole numbers, the smallest first."""
    ref = row.args[0]
    key = graph.rows[ref.id] if isinstance(ref, Ref) else row
    literals = (*row.args[1:], *row.kwargs.values())
    whole = key.dtype is not None and not key.dtype.is_floating_point
    return whole and len(key.shape or ()) == 1 and not any(literal is True for literal in literals[-1:])


@dataclass(slots=True)
class _Unsorting:
    """The rows of the new graph so far. new: by old row. followed: what old rows are to the sort."""

    old: LogicalGraph
    sort: int
    rows: list[Row] = field(default_factory=list)
    new: dict[int, Ref] = field(default_factory=dict)
    followed: dict[int, Followed] = field(default_factory=dict)
    outputs: dict[int, tuple[SortedRows | None, ...]] = field(default_factory=dict)
    gradients: dict[int, tuple[Ref, Ref]] = field(default_factory=dict)
    products: int = 0

    def graph(self) -> LogicalGraph:
        """The new graph, with rows that nothing reads. Raises NotAlone."""
        for row in self.old.rows:
            sources = {ref.id for ref in refs_of((row.args, row.kwargs))}
            if row.id == self.sort or sources.isdisjoint((self.sort, *self.followed, *self.outputs)):
                self._keep(row)
            else:
                self._follow(row)
        grads = (info.grad for info in self.old.params.values())
        ends = {self.old.loss, *self.old.mutated.values(), *(grad for grad in grads if grad is not None)}
        if not self.products or not ends.isdisjoint(self.followed):
            raise NotAlone
        return with_rows(self.old, self.rows, lambda row: self.new[row].id)

    def _follow(self, row: Row) -> None:
        """A row that reads what follows the sort."""
        if row.op == GETITEM:
            self._pick(row)
        elif row.op in BLANK:
            self._keep(row)
        elif row.op == INDEX:
            self._index(row)
        elif row.op == PUT:
            self._put_rows(row)
        elif row.op in (GROUPED, GROUPED_BACKWARD):
            self._product(row)
        else:
            state = self._places(row)
            self._keep(row) if state is not None else self._alone(row)
            if state is not None:
                self.followed[row.id] = state

    def _pick(self, row: Row) -> None:
        """One of the results of the sort, or of what has several."""
        source, place = row.args
        assert isinstance(source, Ref) and isinstance(place, int)
        if source.id == self.sort:
            self._keep(row)
            self.followed[row.id] = SortOrder() if place else SortedRows(keys=True)
            if not place:
                self.new[row.id] = self._keys()
            return
        if source.id in self.gradients:
            self.new[row.id] = self.gradients[source.id][place]
        else:
            self._keep(row)
        state = self.outputs[source.id][place]
        if state is not None:
            self.followed[row.id] = state

    def _places(self, row: Row) -> Followed | None:
        """What a computation with places and counts gives; None where it reads rows."""
        first = row.args[0] if row.args else None
        state = self.followed.get(first.id) if isinstance(first, Ref) else None
        match state, row.op, row.args[1:]:
            case SortOrder(per=1), "aten.floor_divide.default", (int(per),):
                return SortOrder(per)
            case SortOrder(per=1), "aten.div.Tensor_mode", (int(per),) if (
                row.kwargs["rounding_mode"] == "floor"
            ):
                return SortOrder(per)
            case SortedRows(keys=True), "aten.histc.default", (int(bins), 0, int(last)) if last == bins - 1:
                return ExpertCounts(bins)
            case ExpertCounts(ends=False), "aten.cumsum.default", _:
                return replace(state, ends=True)
            case ((ExpertCounts() | SortedRows(keys=True)), "aten._to_copy.default", _):
                return state
        return None

    def _index(self, row: Row) -> None:
        """Rows are sorted, put back, or looked up by their experts."""
        value, (place, *others) = row.args[0], items(row.args[1])
        if others or not isinstance(place, Ref) or not isinstance(value, Ref):
            raise NotAlone
        match self.followed.get(value.id), self.followed.get(place.id):
            case None, SortOrder(per=per):
                self.new[row.id] = self._repeated(row, self.new[value.id], per)
                self.followed[row.id] = SortedRows()
            case None, SortedRows(dim=0):
                self._keep(row)
                self.followed[row.id] = SortedRows()
            case SortedRows(dim=0), OrderBack():
                self.new[row.id] = self.new[value.id]
            case _:
                raise NotAlone

    def _put_rows(self, row: Row) -> None:
        """The inverse of the order, or the gradient of an indexing."""
        base, (place, *others), values, *adds = (row.args[0], items(row.args[1]), *row.args[2:])
        if others or not all(isinstance(each, Ref) for each in (base, place, values)):
            raise NotAlone
        blank = self.old.rows[base.id]  # type: ignore[attr-defined]
        put = self.old.rows[values.id]  # type: ignore[attr-defined]
        kept = blank.op in ZEROS or (blank.op in BLANK and adds != [True])
        if not kept or blank.id in self.followed:
            raise NotAlone
        match self.followed.get(place.id), self.followed.get(put.id):  # type: ignore[attr-defined]
            case SortOrder(per=1), None if put.op == "aten.arange.default" and put.args == row.shape:
                self._keep(row)
                self.followed[row.id] = OrderBack()
            case OrderBack(), None if put.shape == row.shape:
                self.new[row.id] = self.new[put.id]
                self.followed[row.id] = SortedRows()
            case SortOrder(per=1), SortedRows(dim=0) if put.shape == row.shape:
                self.new[row.id] = self.new[put.id]
            case SortOrder(per=per), SortedRows(dim=0) if adds == [True]:
                self.new[row.id] = self._added(row, self.new[put.id], per)
            case SortedRows(dim=0), SortedRows(dim=0) if adds == [True]:
                self._keep(row)
            case _:
                raise NotAlone

    def _product(self, row: Row) -> None:
        """A product of groups."""
        rows, weights, ends, *grad = row.args
        states = [self.followed.get(ref.id) for ref in refs_of((rows, weights, ends, *grad))]
        experts = (self.old.rows[weights.id].shape or (0,))[0] if isinstance(weights, Ref) else 0
        if states != [SortedRows(), None, ExpertCounts(experts, ends=True), *(SortedRows() for _ in grad)]:
            raise NotAlone
        new = [self.new[ref.id] for ref in refs_of((rows, weights, *grad))]
        self.products += 1
        if grad:
            self._gradients(row, *new)
        else:
            self.new[row.id] = self._write(replace(row, op=EXPERT_MM), (*new, self._keys()))
            self.followed[row.id] = SortedRows()

    def _gradients(self, row: Row, rows: Ref, weights: Ref, grad: Ref) -> None:
        """Of the rows, a product with the transposed matrices, and of the matrices."""
        of_rows, of_weights = row.outs or (None, None)
        assert of_rows is not None and of_weights is not None
        one = replace(row, outs=None, dtype=of_rows[1])
        experts, inner, outer = of_weights[0]
        turned = self._write(one, (weights, 1, 2), "aten.transpose.int", (experts, outer, inner))
        made = self._write(one, (grad, turned, self._keys()), EXPERT_MM, of_rows[0])
        summed = self._write(one, (rows, grad, self._keys(), weights), EXPERT_GRAD, of_weights[0])
        self.outputs[row.id] = (SortedRows(), None)
        self.gradients[row.id] = (made, summed)

    def _alone(self, row: Row) -> None:
        """Any other operator: the same one on the unsorted rows."""
        refs = {ref.id for ref in refs_of((row.args, row.kwargs))}
        dims = {}
        for each in refs & self.followed.keys():
            state = self.followed[each]
            if not isinstance(state, SortedRows):
                raise NotAlone
            dims[each] = state.dim
        shapes = {each: self.old.rows[each].shape or () for each in refs}
        found = rows_of_result(row, dims, shapes)
        self._keep(row)
        if row.outs is not None:
            self.outputs[row.id] = tuple(None if found is None else SortedRows(found) for _ in row.outs)
        elif found is not None:
            self.followed[row.id] = SortedRows(found)

    def _keys(self) -> Ref:
        ref = self.old.rows[self.sort].args[0]
        assert isinstance(ref, Ref)
        return self.new[ref.id]

    def _keep(self, row: Row) -> None:
        args, kwargs = changed(row, lambda ref: self.new[ref.id])
        self.new[row.id] = self._write(replace(row, kwargs=kwargs), args)

    def _write(
        self, like: Row, args: tuple[object, ...], op: str = "", shape: tuple[int, ...] | None = None
    ) -> Ref:
        """A row at the end. op, shape: other ones than those of `like`, whose place in the model it has."""
        row = replace(like, id=len(self.rows), args=args)
        if op:
            row = replace(row, op=op, kwargs={}, shape=shape)
        self.rows.append(row)
        return Ref(row.id)

    def _repeated(self, row: Row, value: Ref, per: int) -> Ref:
        """Each row as often as it is chosen."""
        if per == 1:
            return value
        shape = row.shape or ()
        apart = (shape[0] // per, per, *shape[1:])
        one = self._write(row, (value, 1), "aten.unsqueeze.default", (apart[0], 1, *apart[2:]))
        many = self._write(row, (one, apart), "aten.expand.default", apart)
        return self._write(row, (many, shape), "aten.reshape.default", shape)

    def _added(self, row: Row, value: Ref, per: int) -> Ref:
        """The sum over each row's choices."""
        shape = row.shape or ()
        apart = self._write(
            row, (value, (shape[0], per, *shape[1:])), "aten.view.default", (shape[0], per, *shape[1:])
        )
        return self._write(row, (apart, (1,)), "aten.sum.dim_IntList", shape)
