"""What each kind of span is called, what it means to a newcomer, its colour, and the share it counts as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ...base.timeline import SpanKind


class TimeShare(Enum):
    """What the time of a step is divided into; where spans overlap, the earlier one here counts."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"
    OTHER = "other computing"
    COMMUNICATION = "communication"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class KindLook:
    """colour: in light and in dark pages."""

    share: TimeShare
    title: str
    meaning: str
    colour: str


LOOKS: Mapping[SpanKind, KindLook] = {
    SpanKind.FORWARD: KindLook(
        TimeShare.FORWARD, "forward", "computes the outputs of its layers for one micro-batch", "#3b7dd8"
    ),
    SpanKind.BACKWARD: KindLook(
        TimeShare.BACKWARD, "backward", "computes the gradients of its layers for one micro-batch", "#e58a1f"
    ),
    SpanKind.STEP_VALUE: KindLook(
        TimeShare.OTHER, "whole-batch value", "counts what the loss needs of the whole batch", "#14a3a8"
    ),
    SpanKind.SEND: KindLook(TimeShare.COMMUNICATION, "send", "gives a tensor to another stage", "#b07be0"),
    SpanKind.RECV: KindLook(
        TimeShare.COMMUNICATION, "receive", "takes a tensor from another stage", "#7c4dbd"
    ),
    SpanKind.COLLECTIVE: KindLook(
        TimeShare.COMMUNICATION, "collective", "ranks of a group exchange parts of a tensor", "#d6558b"
    ),
    SpanKind.GRADIENT: KindLook(
        TimeShare.COMMUNICATION,
        "gradient sum",
        "sums gradients with the ranks that hold the same parameters",
        "#c9364f",
    ),
    SpanKind.GATHER: KindLook(
        TimeShare.COMMUNICATION,
        "parameter gather",
        "fetches parameters from the ranks that store them",
        "#e884ad",
    ),
    SpanKind.LOSS: KindLook(TimeShare.COMMUNICATION, "loss", "sums the loss over all ranks", "#9a7b3f"),
    SpanKind.UPDATE: KindLook(TimeShare.UPDATE, "update", "the optimizer changes the parameters", "#3f9e4d"),
    SpanKind.WAIT: KindLook(
        TimeShare.WAITING, "wait", "has nothing to do until another rank is done", "#b9bec8"
    ),
    SpanKind.OTHER: KindLook(TimeShare.OTHER, "other", "anything else", "#7b828f"),
}
SHARE_COLOURS: Mapping[TimeShare, str] = {
    TimeShare.FORWARD: LOOKS[SpanKind.FORWARD].colour,
    TimeShare.BACKWARD: LOOKS[SpanKind.BACKWARD].colour,
    TimeShare.UPDATE: LOOKS[SpanKind.UPDATE].colour,
    TimeShare.OTHER: LOOKS[SpanKind.STEP_VALUE].colour,
    TimeShare.COMMUNICATION: LOOKS[SpanKind.COLLECTIVE].colour,
    TimeShare.WAITING: LOOKS[SpanKind.WAIT].colour,
}
