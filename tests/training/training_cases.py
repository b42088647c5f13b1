"""Small models, batches and strategies for which the compiled training step is compared with eager.

Sizes are ambiguous on purpose: sequence length, head size and number of heads are one number, and so
are hidden size, vocabulary and width of the feed-forward. All strategies train on BATCH samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.compiler import lower_graph
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.passes.causal_mask import retarget_masks
from hspmd_compiler.program.program import Program
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import ScheduleKind, Strategy
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.trace.tracer import trace

BATCH = 10
HEADS = SEQ = HEAD_DIM = 6
HIDDEN = VOCAB = WIDE = 36
LAYERS = 2
IGNORE = -100
WITHOUT_TOKEN = 6
"""The row of every batch that has no valid target: a micro-batch of its own in `micro`."""

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Subject:
    """A model to compile. build: a fresh model. batch: the global batch of a step."""

    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]


def llama(kv_heads: int, layers: int = LAYERS) -> nn.Module:
    """HF Llama with grouped-query attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=WIDE,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=kv_heads,
        vocab_size=VOCAB,
        max_position_embeddings=SEQ,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).train()


def gpt2(layers: int = LAYERS, dropout: float = 0.0) -> nn.Module:
    """HF GPT-2: tied embedding, fused c_attn; biases are not zero, so that a wrong one shows.

    dropout: of embeddings, attention weights and residuals; its own default is 0.1.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=HIDDEN,
        n_layer=layers,
        n_head=HEADS,
        vocab_size=VOCAB,
        n_positions=SEQ,
        attn_pdrop=dropout,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    config.loss_type = "ForCausalLM"
    model = GPT2LMHeadModel(config).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.02)
    return model


class Block(nn.Module):
    """Two linear layers with GELU between them, beside the input."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


class Mlp(nn.Module):
    """Blocks, a scale of length 1, and the loss of the last linear layer."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor], layers: int = LAYERS) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(WIDE, WIDE) for _ in range(layers))
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(WIDE, HEADS)
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.loss(self.head(x * self.scale), y)


def tokens(step: int) -> Batch:
    """Random tokens; how many labels are ignored differs per row."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, VOCAB, (BATCH, SEQ), generator=generator)
    labels = ids.clone()
    for row in range(BATCH):
        labels[row, SEQ - (row * 5 + step) % (SEQ - 1) :] = IGNORE
    labels[WITHOUT_TOKEN] = IGNORE
    return {"input_ids": ids, "labels": labels}


def numbers(step: int) -> Batch:
    """Random vectors and targets."""
    generator = torch.Generator().manual_seed(step)
    x, y = (torch.randn(BATCH, size, generator=generator) for size in (WIDE, HEADS))
    return {"x": x, "y": y}


def classes(step: int) -> Batch:
    """Random vectors and classes, some of them ignored."""
    y = torch.randint(0, HEADS, (BATCH,), generator=torch.Generator().manual_seed(step))
    y[WITHOUT_TOKEN] = y[step % BATCH] = IGNORE
    return {"x": numbers(step)["x"], "y": y}


SUBJECTS = {
    "llama": Subject(lambda: llama(kv_heads=3), tokens),
    "llama-kv1": Subject(lambda: llama(kv_heads=1), tokens),
    "gpt2": Subject(gpt2, tokens),
    "gpt2-dropout": Subject(lambda: gpt2(dropout=0.1), tokens),
    "mlp-mse": Subject(lambda: Mlp(nn.functional.mse_loss), numbers),
    "mlp-ce": Subject(lambda: Mlp(nn.functional.cross_entropy), classes),
}

ALL = (0, LAYERS)
FIRST, SECOND = (0, 1), (1, 2)

STRATEGIES = {
    "one": Strategy((P((S((0,), ALL),), (BATCH,)),)),
    "tp3": Strategy((P((S((0, 1, 2), ALL),), (BATCH,)),)),
    "heads3111": Strategy((P((S((0, 1, 2, 3), ALL, (3, 1, 1, 1)),), (6, 4)),)),
    "empty": Strategy((P((S((0, 1, 2), ALL, (2, 0, 1)),), (5, 3, 2)),)),
    "tp41": Strategy((P((S((0, 1, 2, 3), ALL),), (4, 1)), P((S((4,), ALL),), (3, 2)))),
    "tp32": Strategy((P((S((0, 1, 2), ALL),), (4, 2)), P((S((3, 4), ALL),), (4,)))),
    "mixed": Strategy(
        (P((S((0, 1), FIRST), S((2,), SECOND)), (3, 2, 1)), P((S((3, 4), ALL),), (4,))),
    ),
    "dp32": Strategy((P((S((0,), ALL),), (4, 2)), P((S((1,), ALL),), (3, 1)))),
    "tp5": Strategy((P((S((0, 1, 2, 3, 4), ALL),), (7, 3)),)),
    "micro": Strategy((P((S((2,), ALL),), (1, 5, 1)), P((S((0, 1), ALL),), (3,)))),
    "pp": Strategy((P((S((3, 1), FIRST), S((0, 2, 4), SECOND)), (4, 1, 3, 2)),)),
    "gpipe": Strategy(
        (P((S((0,), FIRST), S((1, 2), SECOND)), (5, 3, 2)),),
        schedule=ScheduleKind.GPIPE,
    ),
    "accumulation": Strategy(
        (P((S((0, 1), FIRST), S((2,), SECOND)), (2, 1)), P((S((3, 4), ALL),), (2,))),
        accumulation=2,
    ),
    "sp": Strategy(
        (P((S((0, 1), FIRST), S((2, 3, 4), SECOND)), (3, 2)), P((S((5, 6), ALL),), (5,))),
        sequence_parallel=True,
    ),
    "sp-heads3111": Strategy(
        (P((S((0, 1, 2, 3), ALL, (3, 1, 1, 1)),), (7, 3)),),
        sequence_parallel=True,
    ),
    "sp-empty": Strategy((P((S((0, 1, 2), ALL, (2, 0, 1)),), (6, 4)),), sequence_parallel=True),
    "three": Strategy(
        (
            P((S((0, 1, 2, 3), ALL, (3, 1, 1, 1)),), (4, 1)),
            P((S((4,), FIRST), S((5, 6), SECOND)), (1, 2)),
            P((S((7,), ALL),), (2,)),
        )
    ),
}


@cache
def graph_of(subject: str) -> LogicalGraph:
    """The model traced at BATCH samples; not to be changed."""
    made = SUBJECTS[subject]
    return traced(made.build(), made.batch(0), BATCH)


def traced(model: nn.Module, example: Batch, samples: int) -> LogicalGraph:
    """The graph that a compile starts from."""
    return retarget_masks(trace(model, example, batch=samples))


def program_for(graph: LogicalGraph, strategy: Strategy) -> Program:
    """The passes in a row."""
    return lower_graph(graph, strategy, DeviceKind.CPU).program


@cache
def program_of(subject: str, strategy: str) -> Program:
    """The programs of all ranks; not to be changed."""
    return program_for(graph_of(subject), STRATEGIES[strategy])
