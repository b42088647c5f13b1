"""Is the graph of an artifact that of the model it is compared with? The model is traced again."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..artifact.manifest import fingerprint_model
from ..artifact.store import Artifact
from ..errors import ArtifactError
from ..ir import graph_json
from ..ir.graph import LogicalGraph, Row
from ..ir.printer import call_text, row_type
from ..passes.causal_mask import retarget_masks
from ..passes.layout_wishes import bind_layouts
from ..passes.packed.packed_mask import retarget_packed
from ..strategy.form import strategy_from
from ..trace.blocks.trace_step import trace_step
from .reference import Reference


def check_graph(
    artifact: Artifact, graph: LogicalGraph, reference: Reference, batch: Mapping[str, Tensor]
) -> None:
    """An ArtifactError that names the first row in which they differ.

    The batches that a proof draws follow from the graph, and `--rows` compares with it: both must be the
    model's, not what a file says of it. batch: to trace with where the model came without a fitting one.
    """
    inputs = reference.examples if _fit(graph, reference.examples) else batch
    strategy = strategy_from(artifact.strategy)
    traced = trace_step(
        reference.build(),
        inputs,
        batch=graph.batch,
        precision=artifact.manifest.precision,
        anchors=strategy.anchor_globs,
    ).graph
    traced = bind_layouts(retarget_packed(retarget_masks(traced)), strategy)
    found = fingerprint_model(graph_json.encode(traced), artifact.program)
    if found != artifact.manifest.model_fingerprint:
        raise ArtifactError(
            "the artifact was compiled from another model: its graph is not the one that this model gives",
            at=f"graph.json: {_first_difference(graph, traced)}",
            details=[("artifact", artifact.manifest.model_fingerprint), ("model", found)],
            rule="the model's fingerprint is that of every operator, shape and parameter of a step",
            fix="name the model and arguments that the artifact was compiled with, or compile again",
        )


def _fit(graph: LogicalGraph, examples: Mapping[str, Tensor] | None) -> bool:
    if examples is None or examples.keys() != graph.inputs.keys():
        return False
    return all(
        tuple(examples[name].shape[1:]) == info.shape[1:] and examples[name].dtype == info.dtype
        for name, info in graph.inputs.items()
    )


def _first_difference(graph: LogicalGraph, traced: LogicalGraph) -> str:
    for ours, theirs in zip(graph.rows, traced.rows, strict=False):
        if _told(ours) != _told(theirs):
            return f"rows[{ours.id}]: {_text(ours)}, the model gives {_text(theirs)}"
    if len(graph.rows) != len(traced.rows):
        return f"rows: {len(graph.rows)} rows, the model gives {len(traced.rows)}"
    return "params, inputs, layers, loss or mutated"


def _told(row: Row) -> tuple[object, ...]:
    return (row.op, row.args, row.kwargs, row.shape, row.dtype, row.outs, row.phase, row.layer, row.origin)


def _text(row: Row) -> str:
    return f"{call_text(row)} {row_type(row)}"
