"""Seconds of a pipeline by a formula, for the inner loop of a search: rank with it, price by simulation.

Blocking ends: within a few percent of the simulation on published plans. Ends that do not wait: up to a fifth
below it, for neighbours wait for each other in ways that no sum over stages sees.
"""

from __future__ import annotations

from .pipeline_lists import Pipeline
from .semantics import SendSemantics


def closed_form_s(pipeline: Pipeline, semantics: SendSemantics) -> float:
    """One micro-batch through all stages and back, and the slowest stage for each further one."""
    stages, boundaries = pipeline.stages, pipeline.boundaries
    through = sum(stage.forward_s + stage.backward_s + stage.after_recv_s for stage in stages)
    through += sum(boundary.activation_s + boundary.gradient_s for boundary in boundaries)
    periods = [stage.forward_s + stage.backward_s + stage.later_s for stage in stages]
    for number, boundary in enumerate(boundaries):
        part = semantics.sender_waits(boundary.message_bytes)
        given = 0.0 if semantics.posted_ahead else 1.0
        periods[number] += part * boundary.activation_s + given * boundary.gradient_s
        periods[number] += stages[number].after_recv_s
        periods[number + 1] += part * boundary.gradient_s + given * boundary.activation_s
        periods[number + 1] += stages[number + 1].after_recv_s
    return through + (pipeline.micro_batches - 1) * max(periods)
