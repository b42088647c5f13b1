"""Errors of a strategy with `sizes`: what of the model is not the same at every size, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ...errors import DeduceError, HspmdError
from ...program.sized.size_range import SizeRange
from ...program.sized.sizes import Count

SAME = "a program for micro-batches of any size does the same operators at every size, in the same order"
PLAIN = (str, int, float, bool, type(None))
WITHOUT = "compile without `sizes`, for one size"


@dataclass(frozen=True, slots=True)
class Unlike:
    """A part of the program. detail: more of it. logical: the row of the logical graph that it is of."""

    what: str
    detail: str = ""
    logical: int | None = None


def unlike_programs(
    sizes: SizeRange, place: Unlike, given: Sequence[object] = (), lines: Sequence[str] = ()
) -> HspmdError:
    """Something beside sizes differs between compiles."""
    return DeduceError(
        f"{place.what} is not the same at all sizes",
        at=_line(place, lines),
        details=[*([("part", place.detail)] if place.detail else []), *_at_probes(sizes, given)],
        rule=SAME,
        fix=f"keep code that looks at the size out of the model, give `sizes` another end, or {WITHOUT}",
    )


def unexplained_size(
    sizes: SizeRange, place: Unlike, given: Sequence[object], lines: Sequence[str] = ()
) -> HspmdError:
    """A number that follows no size that a program can have."""
    unit = "tokens" if sizes.unit is Count.TOKENS else "samples"
    return DeduceError(
        f"{place.what} has a number that is no multiple of the {unit}",
        at=_line(place, lines),
        details=_at_probes(sizes, given),
        rule=f"what varies is a whole number times the {unit}, or times a piece of them, plus -1 to 2",
        fix=f"compute it in the model by operators on tensors, or {WITHOUT}",
    )


def ambiguous_sizes(sizes: SizeRange, place: Unlike, text: str, lines: Sequence[str] = ()) -> HspmdError:
    """Two explanations: the probes do not tell them apart."""
    return DeduceError(
        f"{place.what} has a number that two sizes explain",
        at=_line(place, lines),
        details=[("number", text), *_at_probes(sizes)],
        rule="each number that varies has one explanation at the sizes that are compiled",
        fix="give `sizes` another end",
    )


def _at_probes(sizes: SizeRange, given: Sequence[object] = ()) -> list[tuple[str, str]]:
    found, apart = [], _apart(given)
    for number, probe in enumerate(sizes.probes):
        micro = probe.pipelines[0][0]
        at = f"{micro.tokens} tokens" if sizes.unit is Count.TOKENS else f"{micro.samples} samples"
        found.append((f"at {at}", _short(apart[number]) if given else "compiled"))
    return found


def _apart(given: Sequence[object]) -> Sequence[object]:
    """The first parts of what is given that are unlike."""
    while given and all(isinstance(each, (list, tuple)) for each in given):
        parts = zip(*(each for each in given if isinstance(each, (list, tuple))), strict=False)
        found = next((part for part in parts if any(each != part[0] for each in part)), None)
        if found is None:
            break
        given = found
    return given


def _short(value: object) -> str:
    """What a user can read of a value: of objects of the compiler's own no more than their name."""
    if isinstance(value, (list, tuple)) and not all(isinstance(each, PLAIN) for each in value):
        text = f"{len(value)} of them"
    elif isinstance(value, (*PLAIN, list, tuple)):
        text = repr(value)
    else:
        text = " ".join(filter(None, (_word(value, "kind"), _word(value, "name")))) or "another"
    return text if len(text) <= 80 else text[:77] + "..."


def _word(value: object, name: str) -> str:
    found = getattr(value, name, "")
    found = found.value if isinstance(found, Enum) else found
    return found if isinstance(found, str) else ""


def _line(place: Unlike, lines: Sequence[str]) -> str:
    known = place.logical is not None and place.logical < len(lines)
    return lines[place.logical] if known and place.logical is not None else ""


def unlike_graphs(lines: Sequence[str], at: Sequence[tuple[str, str]]) -> HspmdError:
    """The model's code does something else at another size. at: (size, operator)."""
    return DeduceError(
        "the model does not compute the same at all sizes",
        at=lines,
        details=[(f"at {size}", f"{op} comes next") for size, op in at],
        rule=SAME,
        fix=f"take what looks at the size, as `if T > 64`, out of the model, or {WITHOUT}",
    )


def sized_parameters(
    unlike: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]], at: tuple[str, str]
) -> HspmdError:
    """Parameters whose shape is that of the batch."""
    shown = [(name, f"{list(one)} at {at[0]}, {list(two)} at {at[1]}") for name, (one, two) in unlike.items()]
    return DeduceError(
        "parameters depend on the size of the micro-batch",
        details=shown[:8],
        rule="parameters are those of the model, whatever a micro-batch holds",
        fix=f"make the model for its largest size, and let forward take a part of them, or {WITHOUT}",
    )


def told_apart(lines: Sequence[str]) -> HspmdError:
    """A row that another micro-batch computes otherwise."""
    return DeduceError(
        "micro-batches of one size do not compute the same",
        at=lines,
        rule="with sizes a step has any number of micro-batches, so that each does the same: none"
        " adds what is added once a step, and none takes its own part of a constant",
        fix=f"compute it from the inputs of each sample, or {WITHOUT}",
    )


SIDE_BY_SIDE = "with sizes.tokens a step is one call on all of its packed rows side by side, [1, N]"


def tokens_meet(lines: Sequence[str], texts: Sequence[str]) -> HspmdError:
    """Rows in which tokens of unlike documents meet."""
    return DeduceError(
        "tokens of packed documents meet",
        at=lines,
        details=[("row", text) for text in texts[:10]],
        rule=f"{SIDE_BY_SIDE}, in which no document may see another",
        fix="give the model position_ids that restart with each document, let attention follow them, and keep"
        " no cache of keys (use_cache=False);"
        " where other rows meet, let samples vary: sizes: {samples: [1, 64]}",
    )


def shared_attention(lines: Sequence[str]) -> HspmdError:
    """Attention of a member of a context group that is not told documents."""
    return DeduceError(
        "attention over rows that pipelines share is not told which documents they hold",
        at=lines,
        rule="members of a context group meet in attention inside documents, causal or not, or in a window of"
        " them, as positions tell it; a mask of any other kind is of whole rows",
        fix="let attention follow position_ids that restart with each document, or leave out `context`",
    )


def balanced_random(lines: Sequence[str]) -> HspmdError:
    """Random numbers of a member whose tokens are two runs of a row."""
    return DeduceError(
        "the model draws random numbers for tokens of a balanced cut",
        at=lines,
        rule="random numbers are numbered by token, from a micro-batch's first one on; a member of a balanced"
        " cut has two runs of a row",
        fix="set dropout to 0, or let the group's cut be contiguous",
    )


def random_tokens(lines: Sequence[str], texts: Sequence[str]) -> HspmdError:
    """Random numbers that have no place by token: of whole rows, or of pairs of tokens."""
    return DeduceError(
        "the model draws random numbers that are not those of single tokens",
        at=lines,
        details=[("row", text) for text in dict.fromkeys(texts[:10])],
        rule=f"{SIDE_BY_SIDE}; random numbers are numbered by token: they are of [rows, tokens, ...]",
        fix="set the dropout of attention weights, and of whole rows, to 0 (attention_dropout, attn_pdrop),"
        " or let samples vary: sizes: {samples: [1, 64]}",
    )


def shifted_in_rows(lines: Sequence[str]) -> HspmdError:
    """The model makes the next token a token's label."""
    return DeduceError(
        "the model shifts labels along packed tokens",
        at=lines,
        rule=f"{SIDE_BY_SIDE}; shifted there, the last token of a row is trained on the first of the next",
        fix="give labels that are shifted already: pass shift_labels to the model",
    )
