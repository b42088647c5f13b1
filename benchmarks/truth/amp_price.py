"""Our price of an AMP trial: one sample as profiled, further ones by what they work, NICs shared.

Ranks: tensor parallel innermost, then data, then pipeline. Training in fp16, gradients reduced in fp32
(AMP's `fp32_allreduce`), DeepSpeed's instruction order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from hspmd_compiler.cost_models.published.layer_profiles import size_curve
from hspmd_compiler.cost_models.published.pipeline_lists import (
    BoundaryPrices,
    Pipeline,
    StagePrices,
    deepspeed_order,
    lists,
)
from hspmd_compiler.cost_models.published.ring import all_gather_s, all_reduce_s, message_s
from hspmd_compiler.cost_models.semantics import SendSemantics
from hspmd_compiler.cost_models.simulate import end_times
from truth.amp_cluster import AmpCluster
from truth.amp_trials import Trial

HIDDEN, LENGTH, HEADS, VOCABULARY = 1024, 1024, 16, 52256
EMBEDDING, FIRST_BLOCK, PAST_BLOCKS, HEAD, CAST = 0, 2, 26, 28, 29
LAYERS = 30
HALF, FULL = 2, 4
"""Bytes of an element as it is trained, and as its gradient is reduced."""
UPDATE_BYTES = 28
"""Traffic of Adam in mixed fp16, a parameter: gradient, weight and moments read, three of them and the half
weight written."""
ACCUMULATED = 3 * HALF
BLOCK_REDUCTIONS = 2
"""All-reduces of a tensor-parallel block, each way."""

# Tensors of tokens x width that one block reads and writes forward, counted in Megatron 1.1.5 as AMP starts
# it, with no kernel fused. Whole ones: two norms 4, inputs and outputs of matmuls 4, bias, dropout and
# residual twice 15. Split ones: query, key, value 6, context 4, bias and gelu of four widths 16, matmuls
# around it 8. Attention matrices: scores 1, mask 2, softmax 2, dropout with its mask 2.5, context 1.
WHOLE_TENSORS = 23
SPLIT_TENSORS = 34
MATRICES = 8.5
LOSS_FORWARD_BYTES, LOSS_BACKWARD_BYTES = 32, 8
"""Traffic an element of the logits of Megatron's cross entropy in fp32, which is no layer and in no profile:
largest 4, difference 8, exponential 8, sum 4, quotient 8; backward one product in place."""
MASK_BYTES = HALF * LENGTH**2
"""DeepSpeed sends the attention mask along with every activation, as fp16, whole from each rank."""


Backward = Callable[[float, float], float]


def twice_forward(forward_s: float, work_s: float) -> float:
    """The usual rule: backward takes twice the forward."""
    return 2 * forward_s


def amp_step_s(
    cluster: AmpCluster, trial: Trial, semantics: SendSemantics, backward: Backward = twice_forward
) -> float:
    """Seconds of a step. backward: of a layer, from its forward seconds and the work in them."""
    ends = [_simulated(pipeline_of(cluster, trial, copy, backward), semantics) for copy in range(trial.dp)]
    updates = [
        UPDATE_BYTES
        * stage_parameters(trial, stage)
        / memory_rate(cluster, nodes_of(cluster, trial, copy, stage)[0])
        for copy in range(trial.dp)
        for stage in range(trial.pp)
    ]
    rings = max(reduction_s(cluster, trial, stage) for stage in range(trial.pp))
    return max(ends) + rings + tied_s(cluster, trial) + max(updates)


@lru_cache(maxsize=4096)
def _simulated(pipeline: Pipeline, semantics: SendSemantics) -> float:
    return max(end_times(lists(pipeline, deepspeed_order), semantics).values())


def pipeline_of(cluster: AmpCluster, trial: Trial, copy: int, backward: Backward = twice_forward) -> Pipeline:
    """One data-parallel copy as priced stages and boundaries."""
    stages = tuple(stage_prices(cluster, trial, copy, stage, backward) for stage in range(trial.pp))
    boundaries = tuple(boundary_prices(cluster, trial, copy, stage) for stage in range(trial.pp - 1))
    return Pipeline(stages, boundaries, trial.micro_batches)


def _rank(trial: Trial, stage: int, copy: int, part: int) -> int:
    return part + trial.tp * (copy + trial.dp * stage)


def nodes_of(cluster: AmpCluster, trial: Trial, copy: int, stage: int) -> list[int]:
    """The node of each tensor-parallel rank."""
    return [cluster.node_of(_rank(trial, stage, copy, part)) for part in range(trial.tp)]


def arithmetic_rate(cluster: AmpCluster, node: int) -> float:
    """Operations per second that a node's devices reach: of the profiled logits, a matmul and no more."""
    flops, _ = layer_work(HEAD, 1)
    return flops / cluster.forward[cluster.nodes[node].kind, 1][HEAD]


def memory_rate(cluster: AmpCluster, node: int) -> float:
    """Bytes per second that they reach: of the profiled cast of logits to fp32, traffic and nothing else."""
    _, traffic = layer_work(CAST, 1)
    return traffic / cluster.forward[cluster.nodes[node].kind, 1][CAST]


def stage_prices(cluster: AmpCluster, trial: Trial, copy: int, stage: int, backward: Backward) -> StagePrices:
    """A stage by its first rank's node; further samples reduce as much backward as forward."""
    node = nodes_of(cluster, trial, copy, stage)[0]
    layers = range(trial.bounds[stage], trial.bounds[stage + 1])
    times = [layer_s(cluster, node, trial.tp, layer, trial.mbs) for layer in layers]
    gathered = 0.0
    if trial.pp > 1:
        inner = cluster.link(node, node, 1)
        gathered = all_gather_s(inner, HALF * trial.mbs * LENGTH * HIDDEN, trial.tp)
    later = ACCUMULATED * stage_parameters(trial, stage) / memory_rate(cluster, node)
    loss = (0.0, 0.0)
    if trial.bounds[stage + 1] == LAYERS:
        logits = trial.mbs * LENGTH * VOCABULARY / trial.tp / memory_rate(cluster, node)
        loss = (LOSS_FORWARD_BYTES * logits, LOSS_BACKWARD_BYTES * logits)
    onward = loss[0] + sum(compute + reduced for compute, _, reduced in times)
    back = loss[1] + sum(backward(compute, work) + reduced for compute, work, reduced in times)
    return StagePrices(onward, back, gathered, later)


def layer_s(cluster: AmpCluster, node: int, tp: int, layer: int, mbs: int) -> tuple[float, float, float]:
    """Forward of one layer: seconds computing, the work in it, its all-reduces for samples after the first.

    The profile's one sample has its all-reduces within.
    """
    measured = cluster.forward[cluster.nodes[node].kind, tp][layer]
    flops, traffic = layer_work(layer, tp)
    more = flops / arithmetic_rate(cluster, node) + traffic / memory_rate(cluster, node)
    compute = size_curve([(1, measured)], more_s=more).seconds(mbs)
    work = mbs * min(more, measured)
    if not FIRST_BLOCK <= layer < PAST_BLOCKS:
        return compute, work, 0.0
    inner = cluster.link(node, node, 1)
    each = all_reduce_s(inner, HALF * LENGTH * HIDDEN, tp) - all_reduce_s(inner, 1, tp)
    return compute, work, BLOCK_REDUCTIONS * (mbs - 1) * each


def layer_work(layer: int, tp: int) -> tuple[float, float]:
    """Operations and bytes through memory of one layer forward, one sample, one rank."""
    tokens = LENGTH * HIDDEN
    if FIRST_BLOCK <= layer < PAST_BLOCKS:
        flops = (24 * LENGTH * HIDDEN**2 + 4 * LENGTH**2 * HIDDEN) / tp
        matrices = MATRICES * HEADS * LENGTH**2 / tp
        return flops, HALF * (tokens * (WHOLE_TENSORS + SPLIT_TENSORS / tp) + matrices)
    if layer == HEAD:
        return 2 * LENGTH * HIDDEN * VOCABULARY / tp, 0.0
    if layer == CAST:
        return 0.0, (HALF + FULL) * LENGTH * VOCABULARY / tp
    return 0.0, 2 * HALF * tokens


def stage_parameters(trial: Trial, stage: int) -> float:
    """Of one rank; the head's own copy of the embedding on the last stage of several."""
    low, high = trial.bounds[stage], trial.bounds[stage + 1]
    blocks = max(0, min(high, PAST_BLOCKS) - max(low, FIRST_BLOCK))
    total = blocks * 12 * HIDDEN**2 / trial.tp
    if low <= EMBEDDING < high:
        total += VOCABULARY * HIDDEN / trial.tp + LENGTH * HIDDEN
    elif low <= HEAD < high:
        total += VOCABULARY * HIDDEN / trial.tp
    return total


def boundary_prices(cluster: AmpCluster, trial: Trial, copy: int, stage: int) -> BoundaryPrices:
    """Every rank sends its slice, and the mask; all that leave the node for the next stage share its NIC."""
    slice_bytes = HALF * trial.mbs * LENGTH * HIDDEN / trial.tp
    onward = back = 0.0
    for part in range(trial.tp):
        one, other = (cluster.node_of(_rank(trial, number, copy, part)) for number in (stage, stage + 1))
        leaving = [
            (
                cluster.node_of(_rank(trial, stage, there, rank)),
                cluster.node_of(_rank(trial, stage + 1, there, rank)),
            )
            for there in range(trial.dp)
            for rank in range(trial.tp)
        ]
        sharing = max(
            sum(pair[0] == one != pair[1] for pair in leaving),
            sum(pair[1] == other != pair[0] for pair in leaving),
            1,
        )
        link = cluster.link(one, other, sharing)
        onward = max(onward, message_s(link, slice_bytes + MASK_BYTES))
        back = max(back, message_s(link, slice_bytes))
    return BoundaryPrices(onward, back, int(slice_bytes))


def reduction_s(cluster: AmpCluster, trial: Trial, stage: int) -> float:
    """Gradients of one stage around the ring of its copies; rings that leave a node share its NIC."""
    if trial.dp == 1:
        return 0.0
    rings = [
        [cluster.node_of(_rank(trial, stage, copy, part)) for copy in range(trial.dp)]
        for part in range(trial.tp)
    ]
    slowest = 0.0
    for ring in rings:
        for place, one in enumerate(ring):
            other = ring[(place + 1) % len(ring)]
            sharing = sum(one in found and len(set(found)) > 1 for found in _all_rings(cluster, trial))
            link = cluster.link(one, other, max(1, sharing))
            size = FULL * stage_parameters(trial, stage)
            slowest = max(slowest, all_reduce_s(link, size, trial.dp))
    return slowest


def _all_rings(cluster: AmpCluster, trial: Trial) -> list[list[int]]:
    return [
        [cluster.node_of(_rank(trial, stage, copy, part)) for copy in range(trial.dp)]
        for stage in range(trial.pp)
        for part in range(trial.tp)
    ]


def tied_s(cluster: AmpCluster, trial: Trial) -> float:
    """The embedding's gradient between first and last stage: one pair for each copy and rank."""
    if trial.pp == 1:
        return 0.0
    pairs = [
        (
            cluster.node_of(_rank(trial, 0, copy, part)),
            cluster.node_of(_rank(trial, trial.pp - 1, copy, part)),
        )
        for copy in range(trial.dp)
        for part in range(trial.tp)
    ]
    size = HALF * VOCABULARY * HIDDEN / trial.tp
    return max(all_reduce_s(cluster.link(*pair, pairs.count(pair)), size, 2) for pair in pairs)
