"""A step on rows whose number and length are symbols: what code asks of them, and whether one answer holds.

Forward and backward run as in a trace, on tensors without memory, as PyTorch's export with dynamic sizes runs
them. A question whose answer is not the same at every size is code that does something else at another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import nn
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from ..base.source_lines import causes, line_of_caller, line_of_error
from ..errors import HspmdError, OptionError, TraceError
from .capture import DispatchRecorder, LossModule, fake_copy, quiet, running_plainly
from .decompositions.own_decompositions import TRACED_WRONGLY
from .decompositions.written_out import written_out
from .loss_output import loss_of
from .state.held_state import ReachableState
from .state.held_tensors import moving_tensors

Inputs = Mapping[str, torch.Tensor]
LEAST = 2
"""The least size: at 0 and 1 PyTorch itself goes other ways, as for what is broadcast."""
MOST_ROWS = 1 << 16
MOST_ASKED = 1 << 17
"""Sizes at which a question is asked; of a longer range half of them at each end."""
ROWS, TOKENS = 5, 997
"""What sizes are taken for where PyTorch needs a number, or a lower one that the model does not have."""
FEW_ROWS = (2, 3, 5, 7)
"""Rows at which is asked what depends on tokens, too."""
FIX = "keep code that looks at the size out of the model, or leave --symbolic out"


@dataclass(frozen=True, slots=True)
class SymbolRange:
    """What varies: the samples, low to high of them, or the tokens of each row, of any number of rows."""

    low: int
    high: int
    tokens: bool

    @property
    def unit(self) -> str:
        """For people."""
        return "tokens" if self.tokens else "samples"


def check_symbolic(model: nn.Module, inputs: Inputs, sizes: SymbolRange) -> None:
    """A TraceError that names the lines whose code does not do the same at all sizes.

    model: is copied. inputs: an example batch, of which types and further dims count.
    """
    run = _SymbolicRun(sizes)
    try:
        run.step(model, inputs)
    except Exception as error:  # the model's own code runs in there
        for cause in causes(error):
            if isinstance(cause, HspmdError):
                raise cause from None
        if not (run.wrong or list(run.unlike())):
            raise _not_followed(line_of_error(error), sizes) from error
    found = [*run.unlike(), *run.wrong.items()]
    if found:
        raise _looks_at_size(found, sizes)


class _NotedGuards(list[Any]):
    """What was found out of sizes, and the user's line that asked."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.is_forward = True

    def append(self, guard: Any) -> None:
        self.lines.append(line_of_caller() if self.is_forward else "")
        super().append(guard)


@dataclass(slots=True)
class _SymbolicRun:
    """wrong: lines that make sizes which are no sums of products of the symbols, and what is wrong."""

    sizes: SymbolRange
    env: ShapeEnv = field(default_factory=lambda: ShapeEnv(tracked_fakes=[]))
    guards: _NotedGuards = field(default_factory=_NotedGuards)
    wrong: dict[str, str] = field(default_factory=dict)
    rows: set[sympy.Symbol] = field(default_factory=set)
    tokens: int = TOKENS
    _plain: dict[object, bool] = field(default_factory=dict)

    def step(self, model: nn.Module, inputs: Inputs) -> None:
        """Forward and backward."""
        self.env.guards = self.guards
        mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True, export=True)
        fake = fake_copy(model, mode, [tensor for _, tensor in moving_tensors(model)])
        held = {size for param in fake.parameters() for size in param.shape}
        given = {name: self._symbolic(name, value, mode, held) for name, value in inputs.items()}
        step = LossModule(fake, tuple(given), loss_of, ReachableState(fake))
        params = [param for param in fake.parameters() if param.requires_grad]
        with quiet(), mode, running_plainly(step), written_out(TRACED_WRONGLY), DispatchRecorder(self._call):
            loss, *_ = step(*given.values())
            self.guards.is_forward = False
            torch.autograd.grad(loss, params, allow_unused=True)

    def _symbolic(self, name: str, value: torch.Tensor, mode: FakeTensorMode, held: set[int]) -> torch.Tensor:
        """An input whose varying dims are symbols, equal ones the same. held: sizes of parameters."""
        hints = self.hints(held)
        fixed = value.shape[len(hints) :]
        context: StatelessSymbolicContext[Any, Any] = StatelessSymbolicContext(
            dynamic_sizes=[DimDynamic.DUCK] * len(hints) + [DimDynamic.STATIC] * len(fixed)
        )
        example = torch.empty((*hints, *fixed), dtype=value.dtype, device="meta")
        made = mode.from_tensor(example, symbolic_context=context, source=ConstantSource(name))
        if self.sizes.tokens:
            self.rows.update(size.node.expr for size in _sizes_of(made.shape[:1]))
        with mode:
            return torch.empty_like(made, device="cpu")

    def hints(self, held: set[int]) -> list[int]:
        """What varying dims are taken for."""
        if not self.sizes.tokens:
            return [ROWS]
        low, high = self._range(False)
        self.tokens = next(
            (each for each in range(max(min(TOKENS, high), low), low, -1) if each not in {*held, ROWS}), high
        )
        return [ROWS, self.tokens]

    def _range(self, is_rows: bool) -> tuple[int, int]:
        """Sizes of rows or tokens; of samples those of a step, which has any number of micro-batches."""
        if not self.sizes.tokens or is_rows:
            return LEAST, max(self.sizes.high, MOST_ROWS)
        return max(self.sizes.low, LEAST), self.sizes.high

    def _call(
        self, func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        result = func(*args, **kwargs)
        if not self.guards.is_forward:
            return result  # its sizes are those of the forward pass
        for size in _sizes_of((args, tuple(kwargs.values()), result)):
            if not self._is_plain(size.node.expr):
                self.wrong.setdefault(line_of_caller(), "a size is made that is no multiple")
        return result

    def _is_plain(self, expr: Any) -> bool:
        if expr not in self._plain:
            symbols = self.env.simplify(expr).free_symbols
            self._plain[expr] = not symbols or bool(self.env.simplify(expr).is_polynomial(*symbols))
        return self._plain[expr]

    def unlike(self) -> Iterator[tuple[str, str]]:
        """Lines that ask what is not so at every size, and a size at which it is not."""
        same = {one: other for one, other in self.env.replacements.items() if other.is_Symbol}
        for guard, line in zip(self.guards, self.guards.lines, strict=True):
            found = self._counterexample(_replaced(guard.expr, same))
            if found is not None:
                yield line, found

    def _counterexample(self, asked: Any) -> str | None:
        symbols = sorted(asked.free_symbols, key=str)
        if not symbols:
            return None if bool(asked) else "a size is held to one number"
        if isinstance(asked, sympy.Eq) and asked.rhs.is_number and asked.lhs.is_Symbol:
            return "a size becomes a plain number, as by len(x) and int(n): take x.shape[0]"
        rows = [symbol in self.rows for symbol in symbols]
        mixed = len(set(rows)) > 1
        for values in product(*(self._asked(is_rows, mixed) for is_rows in rows)):
            if len(set(values)) < len(values):
                continue  # rows that are as many as tokens
            if not sympy_interp(PythonReferenceAnalysis, dict(zip(symbols, values, strict=True)), asked):
                taken = [ROWS if is_rows or not self.sizes.tokens else self.tokens for is_rows in rows]
                return f"not the same at {self._text(values, rows)} as at {self._text(taken, rows)}"
        return None

    def _text(self, values: Sequence[int], rows: Sequence[bool]) -> str:
        named = zip(values, rows, strict=True)
        return ", ".join(f"{value:,} {'rows' if is_rows else self.sizes.unit}" for value, is_rows in named)

    def _asked(self, is_rows: bool, mixed: bool) -> Iterable[int]:
        low, high = self._range(is_rows)
        if mixed and is_rows:
            return FEW_ROWS
        if high - low < MOST_ASKED:
            return range(low, high + 1)
        return chain(range(low, low + MOST_ASKED // 2), range(high - MOST_ASKED // 2, high + 1))


def _replaced(asked: Any, same: Mapping[Any, Any]) -> Any:
    """With one symbol for those that are equal."""
    while any(symbol in same for symbol in asked.free_symbols):
        asked = asked.xreplace(same)
    return asked


def _sizes_of(value: object) -> Iterator[torch.SymInt]:
    """Symbols among arguments, and in shapes of tensors."""
    if isinstance(value, torch.SymInt):
        yield value
    elif isinstance(value, torch.Tensor):
        yield from _sizes_of(tuple(value.shape))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _sizes_of(item)


def _looks_at_size(found: Sequence[tuple[str, str]], sizes: SymbolRange) -> TraceError:
    lines = list(dict.fromkeys(line for line, _ in found if line))
    return TraceError(
        f"the model's code looks at how many {sizes.unit} there are",
        at=lines,
        details=[("asked", text) for text in dict.fromkeys(text for _, text in found)][:8],
        rule="a program for micro-batches of any size does the same at every size; with --symbolic, what code"
        f" asks of sizes has one answer for {max(sizes.low, LEAST):,} to {sizes.high:,} {sizes.unit}, and"
        " sizes that it makes are sums of products of them",
        fix=FIX,
    )


def _not_followed(line: str, sizes: SymbolRange) -> TraceError:
    return TraceError(
        f"the model can't be run on any number of {sizes.unit} at once",
        at=line,
        rule=f"with --symbolic the model's code runs once, on rows whose {sizes.unit} are a symbol",
        fix="write this line with plain tensor operators, or leave --symbolic out",
    )


def without_sizes(found: str) -> OptionError:
    """For a symbolic run of what has one size."""
    return OptionError(
        f"--symbolic is given, and {found}",
        rule="a symbolic run looks for code that does something else at another size",
        fix="leave --symbolic out, or give the strategy `sizes`",
    )
