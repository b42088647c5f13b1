"""The class that a HF configuration names in `architectures`, with the batch that it takes; or a refusal.

Classes are found by name in transformers' own tables of auto classes, among those of the model type.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import OptionError
from .builtin_models import SAMPLES, Inputs, Made, token_inputs

Json = dict[str, object]
ARCHITECTURES = "architectures"
CAUSAL = "CausalLM"
TABLE = "MODEL_{}_MAPPING_NAMES"
CHOOSE = "--arg architectures=NAME takes another class"


@dataclass(frozen=True, slots=True)
class HeadTask:
    """A head with a loss. table: of transformers' names, by model type. batch: from config and length."""

    auto: str
    table: str
    batch: Callable[[Any, int], Inputs]


def _labels_of_samples(config: Any, seq: int) -> Inputs:
    """Classes, or numbers where the head is a regression or has several labels."""
    labels = torch.zeros(SAMPLES, dtype=torch.int64)
    if config.problem_type == "multi_label_classification":
        labels = torch.zeros(SAMPLES, config.num_labels)
    elif config.problem_type == "regression" or config.num_labels == 1:
        labels = torch.zeros(SAMPLES)
    return token_inputs(seq) | {"labels": labels}


def _spans(config: Any, seq: int) -> Inputs:
    places = {name: torch.zeros(SAMPLES, dtype=torch.int64) for name in ("start_positions", "end_positions")}
    return {"input_ids": token_inputs(seq)["input_ids"], **places}


def _tokens(config: Any, seq: int) -> Inputs:
    return token_inputs(seq)


TASKS = (
    HeadTask("AutoModelFor" + CAUSAL, "FOR_CAUSAL_LM", _tokens),
    HeadTask("AutoModelForSeq2SeqLM", "FOR_SEQ_TO_SEQ_CAUSAL_LM", _tokens),
    HeadTask("AutoModelForMaskedLM", "FOR_MASKED_LM", _tokens),
    HeadTask("AutoModelForTokenClassification", "FOR_TOKEN_CLASSIFICATION", _tokens),
    HeadTask("AutoModelForSequenceClassification", "FOR_SEQUENCE_CLASSIFICATION", _labels_of_samples),
    HeadTask("AutoModelForQuestionAnswering", "FOR_QUESTION_ANSWERING", _spans),
)


def hf_model(fields: Json, seq: int, packed: int = 0) -> Made:
    """The model that a configuration describes, and a batch with `seq` tokens a sample.

    packed: samples are rows of several documents, which a causal language model tells by their positions.
    """
    os.environ.setdefault("USE_HUB_KERNELS", "0")  # transformers' own models look for some there, too
    import transformers

    config: Any = transformers.AutoConfig.for_model(**fields)  # type: ignore[arg-type]
    name, task = _chosen(str(fields["model_type"]), _named(fields.get(ARCHITECTURES)))
    config.use_cache = False
    if task.auto.endswith(CAUSAL):
        config.loss_type = getattr(config, "loss_type", None) or "ForCausalLM"
    made: nn.Module = getattr(transformers, task.auto).from_config(config, trust_remote_code=False)
    if type(made).__name__ != name:
        raise _refused(f"{name} is not what transformers makes of it", [], [name])
    if packed and not task.auto.endswith(CAUSAL):
        raise _refused(f"{name} takes no packed rows", [("packed", "1")], [])
    return made.train(), token_inputs(seq, packed) if packed else task.batch(config, seq)


def _named(architectures: object) -> str | None:
    """The one name, None where there is none."""
    names = [architectures] if isinstance(architectures, str) else architectures or []
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise _refused("architectures is not a list of names", [("found", repr(architectures))], [])
    if len(names) > 1:
        raise _refused("architectures names several classes", [], names)
    return names[0] if names else None


def _chosen(kind: str, name: str | None) -> tuple[str, HeadTask]:
    """The class of this model type with its task; without a name that of a causal language model."""
    offered = dict(_offered(kind))
    if name in offered:
        return name, offered[name]
    if name is not None:
        raise _refused(
            f"the configuration names {name}, which can't be trained as it is", _why(kind, name), offered
        )
    causal = [each for each, task in offered.items() if task.auto.endswith(CAUSAL)]
    if not causal or any("MaskedLM" in task.auto or "Seq2Seq" in task.auto for task in offered.values()):
        raise _refused(f"the configuration of {kind} doesn't name the class that is meant", [], offered)
    return causal[0], offered[causal[0]]


def _offered(kind: str) -> Iterator[tuple[str, HeadTask]]:
    """Classes of a model type that return a loss; the task of a class is the first that has it."""
    seen: set[str] = set()
    for task in TASKS:
        for name in _classes(_table(task.table).get(kind)):
            if name not in seen:
                seen.add(name)
                yield name, task


def _why(kind: str, name: str) -> list[tuple[str, str]]:
    if name in _classes(_table("").get(kind)):
        return [(name, "returns hidden states, and no loss")]
    tables = _all_tables()
    if any(name in _classes(table.get(kind)) for table in tables):
        return [(name, "takes a batch that isn't known here: write a factory that returns it with the model")]
    if any(name in _classes(held) for table in tables for held in table.values()):
        return [(name, f"is a class of another model type, and the configuration is one of {kind}")]
    known = sorted({each for table in tables for each in _classes(table.get(kind))})
    near = difflib.get_close_matches(name, known, n=1)
    return [
        (
            name,
            f"is no class of transformers; nearest is {near[0]}" if near else "is no class of transformers",
        )
    ]


def _refused(
    what: str, details: list[tuple[str, str]], offered: Mapping[str, HeadTask] | Sequence[str]
) -> OptionError:
    names = ", ".join(offered)
    return OptionError(
        what,
        details=[*details, *([("classes", names)] if names else [])],
        rule="the class in architectures is made, and its forward must return a loss",
        fix=f"{CHOOSE}; or write a factory of your own" if names else "write a factory of your own",
    )


def _table(task: str) -> Mapping[str, str | tuple[str, ...]]:
    from transformers.models.auto import modeling_auto

    found: Mapping[str, str | tuple[str, ...]] = getattr(
        modeling_auto, TABLE.format(task) if task else "MODEL_MAPPING_NAMES"
    )
    return found


def _all_tables() -> list[Mapping[str, str | tuple[str, ...]]]:
    from transformers.models.auto import modeling_auto

    return [table for name, table in vars(modeling_auto).items() if name.endswith("_MAPPING_NAMES")]


def _classes(held: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (held,) if isinstance(held, str) else held or ()
