"""An optimizer's options against the model's parameters: what they name, and what their types can hold."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence

import torch

from ..base.name_glob import names
from ..base.name_groups import pattern_of
from ..errors import OptionError
from ..ir.graph import ParamInfo
from ..ir.type_text import dtype_name
from ..options import OptimizerConfig, OptimizerName

LIKE = 0.5
"""How much alike a name must be to be called the nearest."""


def check_optimizer(config: OptimizerConfig, params: Mapping[str, ParamInfo]) -> None:
    """Refuse globs that name no trained parameter, and an eps that is zero in a parameter's type."""
    trained = {name: info for name, info in params.items() if info.grad is not None}
    _check_no_decay(config.no_decay, params, list(trained))
    if config.name is OptimizerName.ADAMW:
        _check_eps(config.eps, trained)


def _check_eps(eps: float, trained: Mapping[str, ParamInfo]) -> None:
    kinds = {info.stored or info.dtype for info in trained.values()}
    lost = [kind for kind in kinds if eps and not torch.tensor(eps, dtype=torch.float64).to(kind).abs()]
    if lost:
        raise OptionError(
            f"eps {eps:g} is zero in {dtype_name(lost[0])}, in which the model's parameters are trained",
            rule="adamw divides by the root of the second moment plus eps, and both can be zero then",
            fix="--precision bfloat16 (precision='bfloat16') trains masters in float32; or make the model in"
            " float32, or give a larger eps, such as 1e-4",
        )


def _check_no_decay(globs: Sequence[str], params: Mapping[str, ParamInfo], trained: Sequence[str]) -> None:
    unmatched = [glob for glob in globs if not any(names(glob, name) for name in trained)]
    if unmatched:
        raise OptionError(
            "no_decay names no trained parameter",
            details=[(glob, next(_why(glob, params, trained))) for glob in unmatched],
            rule="a glob is compared with the whole dotted name: `*.bias`, `*norm.weight`, `*norm*`; a name"
            " without wildcards is a parameter, a module, or the last parts of their names",
            fix="correct it, or leave it out: `hspmd trace MODEL` lists the parameters",
        )


def _why(glob: str, params: Mapping[str, ParamInfo], trained: Sequence[str]) -> Iterator[str]:
    for name, info in params.items():
        if any(names(glob, alias) for alias in info.aliases if alias != name):
            yield f"names only what is tied to {name}, under which it is trained"
        if names(glob, name):
            yield f"names only what gets no gradient, such as {name}"
    near = _nearest(glob, trained)
    yield f"names nothing; nearest is {near}" if near else "names nothing"


def _nearest(glob: str, trained: Sequence[str]) -> str | None:
    """The pattern of names, one of whose ends is most like the glob."""
    plain = glob.strip("*").strip(".").lower()
    ends = {end.lower(): pattern for pattern in map(pattern_of, trained) for end in _ends(pattern)}
    found = difflib.get_close_matches(plain, ends, n=1, cutoff=LIKE)
    return ends[found[0]] if found else None


def _ends(pattern: str) -> Iterator[str]:
    parts = pattern.split(".")
    return (".".join(parts[start:]) for start in range(len(parts)))
