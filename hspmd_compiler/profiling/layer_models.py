"""Models of equal layers whose operators are timed: a decoder as Llama's, and an encoder as ViT's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = tuple[nn.Module, dict[str, Tensor]]
CLASSES, HEAD_WIDTH = 1024, 64


class LayerKind(StrEnum):
    """The models whose layers they are."""

    DECODER = "decoder"
    ENCODER = "encoder"


@dataclass(frozen=True, slots=True)
class LayerModel:
    """So many equal layers, with what stands before and behind them."""

    kind: LayerKind
    width: int
    length: int
    layers: int
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """Of the layer, as it is called in a calibration."""
        return f"{self.kind.value}-{self.width}-{self.length}"

    def factory(self) -> Callable[[], Made]:
        """What compiles: makes the model and a batch."""
        dtype = getattr(torch, self.dtype)

        def make() -> Made:
            if self.kind is LayerKind.DECODER:
                tokens = torch.zeros(2, self.length, dtype=torch.int64)
                return Decoder(self.width, self.length, self.layers).to(dtype), {"x": tokens, "y": tokens}
            side = 4 * int(self.length**0.5)
            image = torch.zeros(2, 3, side, side, dtype=dtype)
            labels = torch.zeros(2, dtype=torch.int64)
            return Encoder(self.width, self.length, self.layers).to(dtype), {"x": image, "y": labels}

        return make


class RootMean(nn.Module):
    """The norm of Llama, in small operators as its authors write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(mean + 1e-6))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class DecoderLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)
        self.before, self.between = RootMean(width), RootMean(width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.before(x)
        shape = (*y.shape[:2], self.heads, HEAD_WIDTH)
        q, k, v = (part(y).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        y = self.between(x)
        mixed: Tensor = self.down(functional.silu(self.gate(y)) * self.up(y))
        return x + mixed


class Decoder(nn.Module):
    def __init__(self, width: int, length: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, width)
        self.layers = nn.ModuleList(DecoderLayer(width) for _ in range(layers))
        self.norm = RootMean(width)
        self.head = nn.Linear(width, CLASSES, bias=False)
        self.register_buffer("cos", torch.ones(length, HEAD_WIDTH))
        self.register_buffer("sin", torch.zeros(length, HEAD_WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, self.cos, self.sin)
        scores = self.head(self.norm(h))
        return functional.cross_entropy(scores.view(-1, CLASSES), y.view(-1))


class EncoderLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        shape = (*y.shape[:2], self.heads, HEAD_WIDTH)
        q, k, v = (part(y).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value))
        weights = torch.softmax(q @ k.transpose(2, 3) * HEAD_WIDTH**-0.5, dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(x.shape))
        mixed: Tensor = self.down(functional.gelu(self.up(self.between(x))))
        return x + mixed


class Encoder(nn.Module):
    def __init__(self, width: int, length: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.place = nn.Parameter(torch.zeros(1, length, width))
        self.layers = nn.ModuleList(EncoderLayer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2) + self.place
        for layer in self.layers:
            h = layer(h)
        return functional.cross_entropy(self.head(self.norm(h).mean(1)), y)
