"""Optimizer options as flags of `hspmd compile`; a flag that isn't given leaves the default."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import fields

from ..options import OptimizerConfig, OptimizerName, ScheduleName


def add_optimizer_flags(parser: ArgumentParser) -> None:
    """The flags, in a group of their own."""
    group = parser.add_argument_group("optimizer, kept in the artifact")
    group.add_argument("--optimizer", dest="name", choices=[name.value for name in OptimizerName])
    group.add_argument("--lr", type=float, help="learning rate")
    group.add_argument("--betas", type=_pair, metavar="B1,B2", help="of adamw")
    group.add_argument("--eps", type=float)
    group.add_argument("--weight-decay", type=float)
    group.add_argument("--momentum", type=float, help="of sgd")
    group.add_argument("--nesterov", action="store_true", default=None)
    group.add_argument(
        "--no-decay",
        action="append",
        metavar="GLOB",
        help="parameters without weight decay, by their whole dotted names: '*.bias', '*norm*'; repeatable",
    )
    group.add_argument("--max-grad-norm", type=float, help="clip the global norm of the gradients")
    group.add_argument("--lr-schedule", "--schedule", choices=[name.value for name in ScheduleName])
    group.add_argument("--warmup-steps", type=int)
    group.add_argument("--total-steps", type=int, help="where the schedule reaches zero")


def optimizer_from(args: Namespace) -> OptimizerConfig:
    """The configuration that the flags say."""
    names = [item.name for item in fields(OptimizerConfig) if item.name != "schedule"]
    given = {name: getattr(args, name) for name in names}
    schedule = {"name": args.lr_schedule, "warmup_steps": args.warmup_steps, "total_steps": args.total_steps}
    given["schedule"] = {key: value for key, value in schedule.items() if value is not None} or None
    return OptimizerConfig.from_json({key: value for key, value in given.items() if value is not None})


def _pair(text: str) -> list[float]:
    parts = text.split(",")
    try:
        values = [float(part) for part in parts]
    except ValueError:
        values = []
    if len(values) != 2:
        raise ArgumentTypeError(f"{text!r} is not two numbers with a comma between, such as 0.9,0.95")
    return values
