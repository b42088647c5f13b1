"""What every rank of `hspmd run` does: its data, where it goes on from, steps, and what is written then."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from ...base.pace import Pace
from ...errors import OptionError
from . import checkpoint_flags, switch_flags
from .training_view import LEFT_OUT

if TYPE_CHECKING:
    from ...runtime.batches.data import DataSource
    from ...runtime.engine import Engine
    from ...runtime.start.rank_process import Emit
    from ...runtime.train import StepRecord


def train_rank(engine: Engine, emit: Emit, args: Namespace, pace: Pace) -> None:
    """What every rank does."""
    data = data_of(engine, args)
    begin(engine, data, emit, args)
    train_on(engine, data, emit, args, pace, engine.steps)


def begin(engine: Engine, data: DataSource, emit: Emit, args: Namespace) -> None:
    """Tell where ranks run, and go on from where --resume says."""
    if engine.places:  # an elastic run has none that stay
        emit({"ranks": list(engine.places)})
    checkpoint_flags.resume(engine, data, args, emit)


def train_on(
    engine: Engine,
    data: DataSource,
    emit: Emit,
    args: Namespace,
    pace: Pace,
    begun: int,
    after_step: Callable[[], None] = lambda: None,
    before_step: Callable[[int], None] = lambda step: None,
) -> None:
    """Train to the end of a run that began at a step, and write what is wanted then."""
    from ...runtime.saved.training_state import save_state
    from ...runtime.saved.weights_file import save
    from ...runtime.timing.tracing import timing_of
    from ...runtime.train import train

    if args.lr is not None:
        engine.lr = args.lr
    timing = timing_of(engine, pace, args.trace, args.steps, args.trace_steps)
    switches = switch_flags.PlannedSwitches(engine, args.switch_at, emit)
    with checkpoint_flags.keeping(engine, data, args, emit) as kept:

        def on_step(record: StepRecord) -> None:
            timing.step_done()
            emit(asdict(record))
            kept()
            after_step()

        def begins(step: int) -> None:
            switches.before_step(step)
            before_step(step)

        train(
            engine,
            data,
            None if args.steps is None else args.steps - (engine.steps - begun),
            args.epochs,
            on_step,
            lambda left: emit({LEFT_OUT: asdict(left)}),
            begins,
        )
        switches.tell_unreached()
        timing.write()
        if args.save is not None:
            save(engine, args.save)
        if args.save_state is not None:
            save_state(engine, data, args.save_state)


def data_of(engine: Engine, args: Namespace, alone: bool = False) -> DataSource:
    """The data that the flags name. alone: only this rank makes its data now."""
    from ...runtime.batches.sources import factory_source, packed_source, text_source

    if args.text is None:
        return factory_source(engine, args.data, args.seed)
    if args.pack is not None and args.elastic and engine.active.sizes is not None:
        raise OptionError(
            "the run can't start as asked",
            details=[("--pack", "with --elastic, of a program for rows of any length")],
            rule="a step has as many packed rows as the strategy was compiled with, and the run goes on under"
            " another one",
            fix="give batches by --data module:factory",
        )
    if args.pack is not None:
        return packed_source(engine, args.text, args.pack, args.tokenizer, args.seed)
    return text_source(engine, args.text, args.tokenizer, args.seed, alone)
