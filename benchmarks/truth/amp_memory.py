"""Whether an AMP trial fits: memory by formula, and one rule of its runtime."""

from __future__ import annotations

from hspmd_compiler.cost_models.published.stage_memory import StageMemory, fits, in_flight
from truth.amp_cluster import AmpCluster
from truth.amp_price import (
    FIRST_BLOCK,
    HALF,
    HEAD,
    HEADS,
    HIDDEN,
    LENGTH,
    PAST_BLOCKS,
    VOCABULARY,
    nodes_of,
    stage_parameters,
)
from truth.amp_trials import Trial

PLATFORM_BYTES = {1: 2e9}
MORE_PLATFORM_BYTES = 3e9
"""What Sailor's planner reckons with beside tensors: 2 GB alone, 3 GB in a tensor-parallel group."""


def refusal(cluster: AmpCluster, trial: Trial) -> str:
    """Why a trial would not be run; empty: it would."""
    if trial.pp > 1 and trial.bounds[1] < FIRST_BLOCK:
        return "the first stage is the embedding alone"
    for stage in range(trial.pp):
        peak = peak_bytes(trial, stage)
        capacity = min(
            cluster.nodes[node].usable_bytes
            for copy in range(trial.dp)
            for node in nodes_of(cluster, trial, copy, stage)
        )
        if not fits(peak, capacity):
            return f"stage {stage} needs {peak / 1e9:.1f} of {capacity / 1e9:.0f} GB"
    return ""


def peak_bytes(trial: Trial, stage: int) -> float:
    """Of a rank of one stage."""
    low, high = trial.bounds[stage], trial.bounds[stage + 1]
    blocks = max(0, min(high, PAST_BLOCKS) - max(low, FIRST_BLOCK))
    kept = blocks * block_bytes(trial)
    matrices = 2 * HALF * trial.mbs * HEADS * LENGTH**2 / trial.tp
    logits = 0.0
    if low <= HEAD < high:
        logits = HALF * trial.mbs * LENGTH * VOCABULARY / trial.tp
    memory = StageMemory(
        stage_parameters(trial, stage),
        kept + logits,
        max(matrices, 2 * logits),
        HALF * trial.mbs * LENGTH * HIDDEN,
        PLATFORM_BYTES.get(trial.tp, MORE_PLATFORM_BYTES),
    )
    return memory.peak_bytes(in_flight(stage, trial.pp, trial.micro_batches), trial.pp)


def block_bytes(trial: Trial) -> float:
    """Kept for backward by one block in fp16 with dropout, unfused attention."""
    per_token = 10 + 24 / trial.tp + 5 * HEADS * LENGTH / (HIDDEN * trial.tp)
    return trial.mbs * LENGTH * HIDDEN * per_token
