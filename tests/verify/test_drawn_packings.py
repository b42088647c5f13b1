"""Positions of packed documents are drawn anew for a proof: rows of whole documents of any lengths."""

from __future__ import annotations

import torch

from hspmd_compiler.models.models import load_model
from hspmd_compiler.passes.causal_mask import retarget_masks
from hspmd_compiler.passes.packed.packed_mask import retarget_packed
from hspmd_compiler.program.kernels.packed_kernels import document_starts
from hspmd_compiler.trace.tracer import trace
from hspmd_compiler.verify.random_batch import draw_batch


def test_positions_of_documents_are_drawn() -> None:
    model, examples = load_model("gpt2-tiny", {"packed": "1", "layers": "1", "seq": "9"}).factory()
    examples = {name: value.repeat(1, 7) for name, value in examples.items()}
    graph = retarget_packed(retarget_masks(trace(model, examples, batch=4)))
    seen = []
    for seed in range(2):
        drawn = draw_batch(graph, examples, torch.Generator().manual_seed(seed))["position_ids"]
        assert drawn.how == "positions of packed documents"
        starts = document_starts(drawn.values)
        assert torch.equal(drawn.values, torch.arange(drawn.values.shape[1]) - starts)
        assert len(starts.unique()) > 4 and int(drawn.values.max()) < 9, "the table has nine positions"
        seen.append(drawn.values)
    assert not torch.equal(*seen)
