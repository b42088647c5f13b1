"""A small language model in float64: only sums in another order differ, and those far behind the point.

Hugging Face's models round to float32 in their norms and losses, whatever their own type is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

LAYERS, WIDTH, HEADS, SEQUENCE = 12, 64, 4, 32
BYTE_VALUES = 256


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        normed = self.attention_norm(x)
        query, key, value = (
            project(normed).view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class SmallTransformer(nn.Module):
    """Predicts each byte from those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTE_VALUES, WIDTH)
        self.position = nn.Parameter(torch.randn(SEQUENCE, WIDTH) * 0.02)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, BYTE_VALUES, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(input_ids) + self.position
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def build() -> tuple[SmallTransformer, dict[str, Tensor]]:
    """A factory as the compiler takes it: the model, and a batch of any number of samples."""
    tokens = torch.zeros(2, SEQUENCE, dtype=torch.int64)
    return SmallTransformer().double(), {"input_ids": tokens, "labels": tokens.clone()}
