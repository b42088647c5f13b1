"""The code of a model on symbols in the place of sizes: what looks at how many there are."""

from __future__ import annotations

from ...base.log import task
from ...models.compile_subject import CompileSubject
from ...strategy.strategy import Strategy
from ...trace.symbolic import SymbolRange, check_symbolic, without_sizes


def check_on_symbols(subject: CompileSubject, strategy: Strategy) -> None:
    """See `check_symbolic`; an OptionError where the strategy has no sizes."""
    if strategy.sizes is None:
        raise without_sizes("the strategy has no `sizes`")
    sizes = SymbolRange(*strategy.sizes.range, strategy.sizes.tokens is not None)
    with task("run the model on symbols"):
        check_symbolic(subject.model, subject.inputs, sizes)
