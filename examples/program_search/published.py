"""Runs of the original's synthesizer, as a file holds them: which settings they had, what they found.

Every field of a run is known here: those that say what was searched are read, the others are results or
remarks. A field, an option or a profile that isn't known is an error, since it may change what is searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import models
import torch
from searched import BENCHMARKS, Setting, Sizes

from hspmd_compiler.base.bad_values import Problem, ProblemSubject
from hspmd_compiler.base.forms import problems_of
from hspmd_compiler.base.json_yaml import read_json
from hspmd_compiler.base.plain_content import text_of
from hspmd_compiler.base.typed import Misfits, read
from hspmd_compiler.errors import OptionError
from hspmd_compiler.synthesizer.hap.costs import Bandwidths
from hspmd_compiler.synthesizer.hap.profiles import PROFILES, speeds_of

ORIGINAL_RUNS = Path(__file__).with_name("original_runs.json")
NAMES = {benchmark.title: name for name, benchmark in BENCHMARKS.items()}


@dataclass(frozen=True, slots=True)
class Options:
    """segmentation: ratios for each segment. extra_ps: parameters lie in slices of their own ratios.

    The others change nothing that is priced: group_collective the calls that are emitted; sharding_ratios
    keeps ratios at the speeds' proportions, which the search may leave.
    """

    segmentation: bool = False
    extra_ps: bool = False
    group_collective: bool = False
    sharding_ratios: object = None


@dataclass(frozen=True, slots=True)
class Run:
    """One run. cluster: speeds as text; device_flops: as numbers. bandwidths: in place of a profile."""

    model: str
    n_devices: int
    cluster: str | None = None
    device_flops: tuple[float, ...] | None = None
    bandwidth_profile: str | None = None
    bandwidths: Bandwidths | None = None
    bandwidth_scale: float = 1.0
    layers: int | None = None
    batch: int | None = None
    seqlen: int | None = None
    n_expert: int | None = None
    capacity: int | None = None
    params: int | None = None
    options: Options = Options()
    final_cost_s: float | None = None
    hap_flops_fwd_bwd: float | None = None
    synth_cpu_s_min: float | None = None
    synth_cpu_s: tuple[float, ...] = ()
    status: str = "ok"
    # Results and remarks that say nothing of what is searched.
    hap_model_name: object = None
    fx_nodes: object = None
    triples_raw: object = None
    triples_fused: object = None
    synth_wall_s: object = None
    loadavg1_at_start: object = None
    search_rounds: object = None
    expansions_per_round: object = None
    rounds: object = None
    emitted_ratios: object = None
    explicit_forward_collectives: object = None
    backward_collectives: object = None
    params_replicated: object = None
    params_sharded: object = None
    params_gathered_at_use: object = None
    maxrss_mb: object = None
    comm_instructions: object = None
    program: object = None

    @property
    def cpu_s(self) -> float | None:
        """The least of the original's repeats."""
        return min((*self.synth_cpu_s, *filter(None, [self.synth_cpu_s_min])), default=None)

    @property
    def title(self) -> str:
        """As a line of a table names it."""
        layers = f" {self.layers} layers" if self.layers else ""
        options = [name for name in ("segmentation", "extra_ps") if getattr(self.options, name)]
        scale = [] if self.bandwidth_scale == 1 else [f"bandwidths x{self.bandwidth_scale:g}"]
        return ", ".join([f"{self.model}{layers}", f"{self.n_devices} devices", *scale, *options])

    def setting(self) -> Setting:
        """What was searched."""
        return Setting(
            NAMES[self.model],
            self._speeds(),
            self._bandwidths(),
            self.layers if self.model != "VGG19" else None,
            self._sizes(),
            self.options.segmentation,
            self.options.extra_ps,
        )

    def problems(self) -> list[Problem]:
        """What can't be searched, by field."""
        found = []
        if self.model not in NAMES:
            found.append(Problem("model", f"{self.model!r}: known are {', '.join(NAMES)}"))
        if self.n_devices < 1:
            found.append(Problem("n_devices", f"{self.n_devices}: at least 1"))
        if self.cluster is None and self.device_flops is None:
            found.append(Problem("cluster", "missing: cluster or device_flops says the speeds"))
        if self.device_flops is not None and len(self.device_flops) != self.n_devices:
            found.append(Problem("device_flops", f"{len(self.device_flops)} of {self.n_devices} devices"))
        if self.bandwidths is None and self.bandwidth_profile not in PROFILES:
            known = ", ".join(PROFILES)
            found.append(Problem("bandwidth_profile", f"{self.bandwidth_profile!r}: known are {known}"))
        if self.layers is None and self.model != "VGG19":
            found.append(Problem("layers", "missing: this model has layers"))
        return found

    def _speeds(self) -> tuple[float, ...]:
        if self.device_flops is not None:
            return self.device_flops
        return tuple(speeds_of(self.cluster or "", self.n_devices))

    def _bandwidths(self) -> Bandwidths:
        found = self.bandwidths or PROFILES[self.bandwidth_profile or ""]
        return found.scaled(self.bandwidth_scale)

    def _sizes(self) -> Sizes:
        """Arguments of the factory; the vocabulary is the one that gives the parameters of the run."""
        given = {"batch": self.batch}
        if self.model.startswith("BERT"):
            given |= {"seq": self.seqlen, "vocab": self._words()}
        if self.model == "BERT-MoE":
            given |= {"experts": self.n_expert, "capacity": self.capacity}
        return tuple((name, value) for name, value in given.items() if value is not None)

    def _words(self) -> int | None:
        if self.params is None:
            return None
        build = BENCHMARKS[NAMES[self.model]].build
        experts = {"experts": self.n_expert} if self.n_expert and self.model == "BERT-MoE" else {}
        with torch.device("meta"):
            model, _ = build(self.layers, self.n_devices, vocab=1, **experts)
        others = sum(held.numel() for name, held in model.named_parameters() if name[:2] not in ("en", "de"))
        word = 2 * model.get_parameter("encoder.weight").shape[1] + 1
        words, left = divmod(self.params - others, word)
        return words if not left and words > 0 else models.padded_words(self.n_devices)


def read_runs(path: Path) -> tuple[Run, ...]:
    """All runs of a file; what is wrong in any of them is told at once."""
    subject = ProblemSubject("the original's runs", OptionError)
    try:
        content = read_json(text_of(path), subject, may_be_nan=True)
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"can't read {path}", details=[("why", str(error))]) from None
    listed = content.get("runs") if isinstance(content, dict) else content
    if not isinstance(listed, list):
        raise OptionError(f"{path} has no list of runs", rule="an object whose key runs is a list")
    runs: list[Run] = []
    problems: list[Problem] = []
    for index, given in enumerate(listed):
        found = _run(given, problems, f"runs[{index}]")
        runs += [found] if found else []
    subject.refuse(problems, str(path))
    return tuple(runs)


def _run(given: object, problems: list[Problem], at: str) -> Run | None:
    try:
        run = read(Run, given)
    except Misfits as error:
        problems += [Problem(f"{at}.{each.path}", each.text) for each in problems_of(error, "run")]
        return None
    problems += [Problem(f"{at}.{each.path}", each.text) for each in run.problems()]
    return run


def matching(runs: Sequence[Run], setting: Setting) -> Run | None:
    """The run that searched the same, if it is among them; sizes that aren't said are the benchmarks'."""
    same = replace(setting, sizes=())
    return next((run for run in runs if replace(run.setting(), sizes=()) == same), None)
