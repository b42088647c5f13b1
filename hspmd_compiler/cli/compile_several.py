"""`hspmd compile` of several strategies: one bundle, with the plans of switches between them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..base.devices import DeviceKind
from ..errors import OptionError
from .command import model_arguments
from .optimizer_flags import optimizer_from
from .show import progress, show_sections

if TYPE_CHECKING:
    from ..compiled_bundle import BundleEntry

OWN_ARGUMENT = "--strategy-arg"


def add_bundle_flags(parser: ArgumentParser) -> None:
    """Flags of a bundle of several strategies."""
    several = parser.add_argument_group("several strategies, each named as its file without the ending")
    several.add_argument(
        "--switch",
        metavar="A:B,B:A",
        help="plan these switches only (default: every ordered pair)",
    )
    several.add_argument(
        "--home",
        metavar="A",
        help="also plan steps whose optimizer state stays with A while another strategy computes",
    )
    several.add_argument(
        OWN_ARGUMENT,
        metavar="A:KEY=VALUE",
        action="append",
        default=[],
        help="an argument of the model for one strategy, such as A:seq=1024; repeatable",
    )


def is_of_several(args: Namespace) -> bool:
    """Whether a bundle is asked for."""
    return (
        len(args.strategy) > 1 or args.switch is not None or args.home is not None or bool(args.strategy_arg)
    )


def run_several(args: Namespace) -> int:
    """Compiles, writes, and shows what was written."""
    optimizer = optimizer_from(args)
    arguments = model_arguments(args)

    from ..artifact.write import check_target
    from ..models.models import load_model

    if args.rank is not None:
        raise OptionError(
            "--rank goes with one strategy",
            details=[("--strategy", ", ".join(map(str, args.strategy)))],
            rule="a rank has another program in each strategy of a bundle",
            fix="compile the bundle whole",
        )
    if args.symbolic:
        raise OptionError(
            "--symbolic goes with one strategy",
            details=[("--strategy", ", ".join(map(str, args.strategy)))],
            rule="a symbolic run is of the range of one strategy's `sizes`",
            fix="leave --symbolic out",
        )
    check_target(args.output.resolve(), args.force)

    from ..api import compile_bundle

    with progress():
        bundle = compile_bundle(
            load_model(args.model, arguments),
            strategies=_entries(args, arguments),
            switch=args.switch,
            home=args.home,
            optimizer=optimizer,
            device=DeviceKind(args.device),
            dump=args.dump,
            capture=args.capture,
            precision=args.precision,
            cluster=args.cluster,
        )
        bundle.save(args.output, weights=False, force=args.force)
    show_sections(bundle.inspect(), args.json)
    return 0


def _entries(args: Namespace, arguments: dict[str, str]) -> Sequence[BundleEntry]:
    """The strategies; those with arguments of their own have a model of their own."""
    from ..compiled_bundle import BundleEntry
    from ..models.models import load_model

    own = _own_arguments(args.strategy_arg, [path.stem for path in args.strategy])
    return [
        BundleEntry(path, model=load_model(args.model, arguments | own[path.stem]))
        if path.stem in own
        else BundleEntry(path)
        for path in args.strategy
    ]


def _own_arguments(given: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Arguments of the model by the strategy that they belong to; all mistakes at once."""
    found: dict[str, dict[str, str]] = {}
    bad = []
    for text in given:
        name, colon, pair = text.partition(":")
        key, sign, value = pair.partition("=")
        if not colon or not sign or not key.isidentifier():
            bad.append((text, "not NAME:KEY=VALUE"))
        elif name not in names:
            bad.append((text, f"no strategy {name!r}; there are {', '.join(names)}"))
        elif key in found.setdefault(name, {}):
            bad.append((text, f"{key} is given more than once for {name}"))
        else:
            found[name][key] = value
    if bad:
        raise OptionError(
            f"{OWN_ARGUMENT} is not understood",
            details=bad,
            rule=f"{OWN_ARGUMENT} is NAME:KEY=VALUE, once for each key of a strategy",
            fix=f"{OWN_ARGUMENT} {names[0]}:seq=1024",
        )
    return found
