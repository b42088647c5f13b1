"""What a user chooses beside the strategy: optimizer, clipping, learning rate, how to trace. Values only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Annotated, Literal, TypeAlias, TypeGuard

from .base import name_glob
from .base.forms import read_form
from .base.typed import Converted, Either, Wanted
from .errors import OptionError

Json = dict[str, object]
Clash = tuple[str, str]

OPTIMIZER = "optimizer"
BETAS, EPS = (0.9, 0.999), 1e-8
FIRST_MOMENT, SECOND_MOMENT, MOMENTUM = "exp_avg", "exp_avg_sq", "momentum_buffer"
Norm: TypeAlias = Annotated[
    float, Either((str,), Literal["inf"], float), Wanted("a number, or the text inf"), Converted(float)
]


class OptimizerName(Enum):
    """The update rule; both are torch's."""

    ADAMW = "adamw"
    SGD = "sgd"


class ScheduleName(Enum):
    """How the learning rate goes after the warm-up; the formulas are those of `transformers`.

    After `total_steps` a cosine stays at zero.
    """

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class Capture(Enum):
    """How much of a model is traced: one block of each kind where that is proven enough, or all."""

    AUTO = "auto"
    FULL = "full"


class Precision(Enum):
    """The type that a model computes in: its own, or a narrow one beside stored parameters of its own."""

    MODEL = "model"
    BFLOAT16 = "bfloat16"


class PlanMethod(Enum):
    """How a strategy is found. program: layouts and ratios of each tensor, by exact search."""

    PROGRAM = "program"


class PlanSpace(Enum):
    """Which programs are searched. full: all that the rules of operators allow. hap: HAP's instructions."""

    FULL = "full"
    HAP = "hap"


class PlanCost(Enum):
    """What programs are compared by. cluster: prices on the cluster. hap: HAP's formulas."""

    CLUSTER = "cluster"
    HAP = "hap"


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """What is searched, and what it is compared by."""

    space: PlanSpace = PlanSpace.FULL
    cost: PlanCost = PlanCost.CLUSTER

    def __post_init__(self) -> None:
        if (self.space, self.cost) == (PlanSpace.FULL, PlanCost.HAP):
            raise OptionError(
                "HAP's formulas price HAP's instructions only",
                details=[("space", self.space.value), ("cost", self.cost.value)],
                rule="the cost hap goes with the space hap",
                fix="--space hap --cost hap",
            )


def check_choices(subject: str, given: Mapping[str, tuple[type[Enum], object]]) -> None:
    """Raise one OptionError for all values that are no member, or a member's text, of their kind."""
    clashes = []
    for name, (kind, value) in given.items():
        texts = [str(member.value) for member in kind]
        if not isinstance(value, kind) and value not in texts:
            clashes.append((name, f"{value!r}: one of {', '.join(texts)}"))
    raise_clashes(subject, clashes)


def _take_text(config: object, name: str, kind: type[Enum]) -> None:
    """A member's text, in place of the member, is the member."""
    value = getattr(config, name)
    if value in [member.value for member in kind]:
        object.__setattr__(config, name, kind(value))


def _unknown(name: str, value: object, kind: type[Enum]) -> Iterator[Clash]:
    if not isinstance(value, kind):
        yield name, f"{value!r}: one of {', '.join(str(member.value) for member in kind)}"


@dataclass(frozen=True, slots=True)
class LearningRateSchedule:
    """A factor on the learning rate per step; `total_steps` is where linear and cosine reach zero."""

    name: ScheduleName = ScheduleName.CONSTANT
    warmup_steps: int = 0
    total_steps: int | None = None

    def __post_init__(self) -> None:
        _take_text(self, "name", ScheduleName)
        raise_clashes(OPTIMIZER, list(self._clashes()))

    def factor(self, step: int) -> float:
        """The factor of a step, counted from 0; a warm-up starts at 0."""
        if step < self.warmup_steps:
            return step / self.warmup_steps
        if self.name is ScheduleName.CONSTANT or self.total_steps is None:
            return 1.0
        span = max(1, self.total_steps - self.warmup_steps)
        if self.name is ScheduleName.LINEAR:
            return max(0.0, (self.total_steps - step) / span)
        progress = min(1.0, (step - self.warmup_steps) / span)
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))

    def _clashes(self) -> Iterator[Clash]:
        yield from _unknown("schedule.name", self.name, ScheduleName)
        if not is_count(self.warmup_steps):
            yield "schedule.warmup_steps", f"{self.warmup_steps!r}: a whole number of 0 or more"
        if self.total_steps is None:
            if self.name in (ScheduleName.LINEAR, ScheduleName.COSINE):
                yield "schedule.total_steps", f"missing: {self.name.value} needs the number of steps"
        elif not is_count(self.total_steps) or self.total_steps == 0:
            yield "schedule.total_steps", f"{self.total_steps!r}: a whole number above 0"
        elif is_count(self.warmup_steps) and self.total_steps < self.warmup_steps:
            yield "schedule.total_steps", f"{self.total_steps} is less than warmup_steps {self.warmup_steps}"

    def to_json(self) -> Json:
        return {"name": self.name.value, "warmup_steps": self.warmup_steps, "total_steps": self.total_steps}


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """The optimizer of a program, kept in its manifest; defaults are torch's, but no weight decay.

    no_decay: globs over whole dotted names of parameters that get no weight decay. max_grad_norm: global
    norm that gradients are clipped to, None for no clipping; `inf` only reports the norm.
    """

    name: OptimizerName = OptimizerName.ADAMW
    lr: float = 1e-3
    betas: tuple[float, float] = BETAS
    eps: float = EPS
    weight_decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    no_decay: tuple[str, ...] = ()
    max_grad_norm: float | None = None
    schedule: LearningRateSchedule = field(default_factory=LearningRateSchedule)

    def __post_init__(self) -> None:
        _take_text(self, "name", OptimizerName)
        globs: object = self.no_decay
        if isinstance(globs, str):  # whose letters would be globs
            object.__setattr__(self, "no_decay", (globs,))
        raise_clashes(OPTIMIZER, list(self._clashes()))

    @property
    def moments(self) -> tuple[str, ...]:
        """Torch's names of the tensors that are kept for each parameter."""
        if self.name is OptimizerName.ADAMW:
            return FIRST_MOMENT, SECOND_MOMENT
        return (MOMENTUM,) if self.momentum else ()

    def decay_of(self, parameter: str) -> float:
        """The weight decay of one parameter."""
        spared = any(name_glob.names(pattern, parameter) for pattern in self.no_decay)
        return 0.0 if spared else self.weight_decay

    def lr_at(self, step: int, base: float | None = None) -> float:
        """The learning rate of a step counted from 0, from `base` or the configured rate."""
        return (self.lr if base is None else base) * self.schedule.factor(step)

    def _clashes(self) -> Iterator[Clash]:
        yield from _unknown("name", self.name, OptimizerName)
        schedule: object = self.schedule
        if not isinstance(schedule, LearningRateSchedule):
            yield "schedule", f"{schedule!r}: a LearningRateSchedule"
        if not all(isinstance(glob, str) for glob in self.no_decay):
            yield "no_decay", f"{self.no_decay!r}: globs, as texts"
        for name in ("lr", "eps", "weight_decay", "momentum"):
            if not is_finite(value := getattr(self, name)) or value < 0:
                yield name, f"{value!r}: a number of 0 or more"
        if len(self.betas) != 2 or not all(is_finite(beta) and 0 <= beta < 1 for beta in self.betas):
            yield "betas", f"{self.betas!r}: two numbers of 0 or more and below 1"
        if self.nesterov and not self.momentum:
            yield "nesterov", "needs a momentum above 0"
        if self.name is OptimizerName.ADAMW and (self.momentum or self.nesterov):
            yield "momentum", "adamw has betas, not a momentum"
        if self.name is OptimizerName.SGD and (self.betas, self.eps) != (BETAS, EPS):
            yield "betas" if self.betas != BETAS else "eps", "sgd has a momentum, neither betas nor eps"
        if self.max_grad_norm is not None and not (is_number(self.max_grad_norm) and self.max_grad_norm > 0):
            yield "max_grad_norm", f"{self.max_grad_norm!r}: a number above 0"

    def to_json(self) -> Json:
        """Every field, with an infinite norm as the text `inf`."""
        norm = self.max_grad_norm
        return {
            "name": self.name.value,
            "lr": self.lr,
            "betas": list(self.betas),
            "eps": self.eps,
            "weight_decay": self.weight_decay,
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "no_decay": list(self.no_decay),
            "max_grad_norm": "inf" if norm == math.inf else norm,
            "schedule": self.schedule.to_json(),
        }

    @classmethod
    def of(cls, given: object) -> OptimizerConfig:
        """What a user gives: a configuration, a name alone, a dict of options, or None for the defaults."""
        if given is None or isinstance(given, cls):
            return given or cls()
        if isinstance(given, (str, OptimizerName)):
            return cls.from_json({"name": given.value if isinstance(given, OptimizerName) else given})
        if isinstance(given, Mapping):
            return cls.from_json(dict(given))
        kind = f"{type(given).__module__}.{type(given).__qualname__}"
        raise OptionError(
            f"the optimizer is a {kind if not isinstance(given, type) else given.__qualname__}",
            rule="an artifact keeps the options of an optimizer, and every rank makes its own of them",
            fix="optimizer='adamw', {'name': 'sgd', 'lr': 0.1}, or an OptimizerConfig",
        )

    @classmethod
    def from_json(cls, data: object) -> OptimizerConfig:
        """Read what `to_json` writes; fields may be missing, all bad ones are told at once."""
        found = read_form(OptimizerForm, data, OPTIMIZER, {"": {}})
        clashes = [(problem.path, problem.text) for problem in found.problems]
        given = {item.name: getattr(found.form, item.name) for item in fields(OptimizerForm)}
        schedule = {item.name: getattr(found.form.schedule, item.name) for item in fields(ScheduleForm)}
        try:
            given["schedule"] = LearningRateSchedule(**schedule)
        except OptionError as error:
            clashes += error.details
            given["schedule"] = LearningRateSchedule()
        try:
            made = cls(**given)
        except OptionError as error:
            clashes += error.details
        raise_clashes(OPTIMIZER, clashes)
        return made


@dataclass(frozen=True, slots=True)
class ScheduleForm:
    """The keys of a LearningRateSchedule."""

    name: ScheduleName = ScheduleName.CONSTANT
    warmup_steps: int = 0
    total_steps: int | None = None


@dataclass(frozen=True, slots=True)
class OptimizerForm:
    """The keys of an OptimizerConfig."""

    name: OptimizerName = OptimizerName.ADAMW
    lr: float = 1e-3
    betas: Annotated[tuple[float, ...], Wanted("a list of numbers")] = BETAS
    eps: float = EPS
    weight_decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    no_decay: Annotated[tuple[str, ...], Wanted("a list of texts")] = ()
    max_grad_norm: Norm | None = None
    schedule: ScheduleForm = ScheduleForm()


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a rank computes what its program says; its ranks do it alike.

    deterministic: updates with the bits of torch.optim's default. torch_compile: runs of operators are
    compiled by torch.compile, which may round otherwise. cuda_graphs: small ones are replayed as CUDA graphs.
    """

    deterministic: bool = False
    torch_compile: bool = False
    cuda_graphs: bool = False

    @property
    def flags(self) -> dict[str, str]:
        """What all ranks must have alike, by name."""
        return {f"--{item.name.replace('_', '-')}": str(getattr(self, item.name)) for item in fields(self)}


PLAIN = Arithmetic()


def raise_clashes(subject: str, clashes: Sequence[Clash]) -> None:
    """Raise one OptionError for these (name, text) pairs, each name once; none: return."""
    first: dict[str, str] = {}
    for name, text in clashes:
        first.setdefault(name, text)
    if first:
        raise OptionError(f"bad {subject} options: {', '.join(first)}", details=list(first.items()))


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is a number, infinity too, NaN and booleans not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def is_finite(value: object) -> TypeGuard[float]:
    """Whether the value is a number other than infinity."""
    return is_number(value) and math.isfinite(value)


def is_count(value: object) -> TypeGuard[int]:
    """Whether the value is a whole number of 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
