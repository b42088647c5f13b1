"""What `trainers.py` trains: a model of equal blocks with a head, its batches, and its parts for stages."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, LAYERS, CLASSES = 512, 4, 10
TOKENS, HEADS, VOCAB = 64, 8, 256

Batch = dict[str, Tensor]


class Wide(nn.Module):
    """Two matrices, 2048 x 512 and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Attending(nn.Module):
    """Causal attention, then two matrices."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.wide = Wide(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (self._heads(linear(y)) for linear in (self.q, self.k, self.v))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wide(x + self.o(seen.transpose(1, 2).flatten(2)))

    @staticmethod
    def _heads(x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, WIDTH // HEADS)).transpose(1, 2)


class Blocks(nn.Module):
    """Some layers in a row. first, last: with what stands before all layers, and behind them."""

    def __init__(self, kind: str, layers: int = LAYERS, first: bool = True, last: bool = True) -> None:
        super().__init__()
        is_mlp = kind == "mlp"
        self.before = nn.Embedding(VOCAB, WIDTH) if first and not is_mlp else None
        self.layers = nn.ModuleList(Wide(WIDTH) if is_mlp else Attending(WIDTH) for _ in range(layers))
        self.head = nn.Linear(WIDTH, CLASSES if is_mlp else VOCAB) if last else None

    def forward(self, x: Tensor) -> Tensor:
        if self.before is not None:
            x = self.before(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(x)


class Trained(Blocks):
    """All of it, and its loss."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return loss_of(super().forward(x), y)


def loss_of(scores: Tensor, y: Tensor) -> Tensor:
    """The mean over labels."""
    return functional.cross_entropy(scores.flatten(0, -2), y.flatten())


def build(kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """What `hspmd compile` takes."""
    return Trained(kind), batch(kind, 2, 0)


def batch(kind: str, size: int, seed: int) -> dict[str, Tensor]:
    """A global batch."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "mlp":
        x = torch.randn(size, WIDTH, generator=generator)
        return {"x": x, "y": x[:, :CLASSES].argmax(1)}
    ids = torch.randint(0, VOCAB, (size, TOKENS), generator=generator)
    return {"x": ids, "y": ids.roll(-1, 1)}


def stage(kind: str, low: int, high: int, state: dict[str, Tensor]) -> Blocks:
    """Layers [low, high) with what stands before or behind them, as one stage has it."""
    part = Blocks(kind, high - low, low == 0, high == LAYERS)
    own = {}
    for name, value in state.items():
        head, _, rest = name.partition(".")
        if head != "layers":
            own[name] = value
            continue
        number, _, inside = rest.partition(".")
        if low <= int(number) < high:
            own[f"layers.{int(number) - low}.{inside}"] = value
    wanted = part.state_dict().keys()
    part.load_state_dict({name: own[name] for name in wanted})
    return part
