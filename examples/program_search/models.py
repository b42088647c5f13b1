"""The four models of HAP's benchmarks, written with torch alone: VGG19, ViT, BERT-Base, BERT-MoE.

A factory gives the model and a batch of 32 samples for each device. `forward` takes the batch by its
keys and returns the loss, summed over samples. Sizes are those of the benchmarks unless said;
in this folder, `hspmd trace models:vit` takes a factory as it takes any other.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil, log, sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[nn.Module, dict[str, Tensor]]

SAMPLES_PER_DEVICE = 32
WORDS = 33278
"""WikiText-2's vocabulary; it is padded to a multiple of the devices."""
EXPERTS_PER_DEVICE = 2
CAPACITY_FACTOR = 2.5
STAGES_OF_VGG = ((1, 1), (2, 2), (4, 4, 4, 4), (8, 8, 8, 8), (8, 8, 8, 8))
"""Channels of the convolutions between poolings, in units of the first."""


class VGG19(nn.Module):
    """16 convolutions of 3 x 3 without batch norm, and three linear layers."""

    def __init__(self, channels: int, ffn: int, classes: int, dropout: float) -> None:
        super().__init__()
        widths = [3, *(channels * times for stage in STAGES_OF_VGG for times in stage)]
        convolutions = [nn.Conv2d(wide, next_wide, 3, padding=1) for wide, next_wide in pairwise(widths)]
        features: list[nn.Module] = []
        for stage in STAGES_OF_VGG:
            for convolution in convolutions[: len(stage)]:
                features += [convolution, nn.ReLU()]
            convolutions = convolutions[len(stage) :]
            features.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*features)
        self.pool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            *(nn.Linear(widths[-1] * 49, ffn), nn.ReLU(), nn.Dropout(dropout)),
            *(nn.Linear(ffn, ffn), nn.ReLU(), nn.Dropout(dropout)),
            nn.Linear(ffn, classes),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.classifier(torch.flatten(self.pool(self.features(x)), 1))
        return F.nll_loss(F.log_softmax(logits, 1), y, reduction="sum")


def encoder_layer(hidden: int, heads: int, ffn: int, dropout: float) -> nn.Module:
    """PyTorch's own: attention, then two linear layers, each with a norm behind it."""
    return nn.TransformerEncoderLayer(hidden, heads, ffn, dropout, batch_first=True)


class ViT(nn.Module):
    """Patches and a class token through encoder layers; the class token is classified."""

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        ffn: int,
        image: int,
        patch: int,
        classes: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, hidden, patch, stride=patch)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, hidden))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, (image // patch) ** 2 + 1, hidden))
        self.layers = nn.ModuleList(encoder_layer(hidden, heads, ffn, dropout) for _ in range(layers))
        self.decoder = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = torch.transpose(torch.flatten(self.patch_embed(x), 2), 1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self.pos_embed
        for layer in self.layers:
            x = layer(x)
        return F.nll_loss(F.log_softmax(self.decoder(x[:, 0]), 1), y, reduction="sum")


def top_2_gating(x: Tensor, gate_weight: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Which place of which expert each token goes to, and with which weight it comes back.

    Both are [batch, tokens, experts, capacity]. A sequence fills an expert's places by its tokens'
    first choices in order, then by second choices; tokens beyond the capacity are dropped.
    """
    experts = gate_weight.shape[1]
    shares = torch.softmax(torch.matmul(x, gate_weight), dim=-1)
    first = F.one_hot(torch.argmax(shares, dim=-1), experts).to(x.dtype)
    second = F.one_hot(torch.argmax(shares - 2 * first, dim=-1), experts).to(x.dtype)
    place = torch.cumsum(first, dim=1) - first
    place_of_second = torch.cumsum(second, dim=1) - second + first.sum(dim=1, keepdim=True)
    share = (shares * first).sum(dim=-1, keepdim=True)
    share_of_second = (shares * second).sum(dim=-1, keepdim=True)
    total = share + share_of_second
    places = torch.arange(capacity, device=x.device)
    dispatch = torch.zeros((), dtype=x.dtype, device=x.device)
    combine = torch.zeros((), dtype=x.dtype, device=x.device)
    for chosen, at, weight in ((first, place, share), (second, place_of_second, share_of_second)):
        taken = chosen.unsqueeze(-1) * (at.unsqueeze(-1) == places).to(x.dtype)
        dispatch = dispatch + taken
        combine = combine + taken * (weight / total).unsqueeze(-1)
    return dispatch, combine


class MoELayer(nn.Module):
    """An encoder layer that has experts of two matrices, without biases, in place of its linear layers."""

    def __init__(
        self, hidden: int, heads: int, ffn: int, experts: int, capacity: int, dropout: float
    ) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(hidden, heads, dropout, batch_first=True)
        self.gate_weight = nn.Parameter(torch.randn(hidden, experts) / sqrt(hidden))
        self.w1 = nn.Parameter(torch.randn(experts, hidden, ffn) / sqrt(hidden))
        self.w2 = nn.Parameter(torch.randn(experts, ffn, hidden) / sqrt(ffn))
        self.norm1 = nn.LayerNorm(hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.dropout1 = nn.Dropout(dropout)
        self.capacity = capacity

    def forward(self, x: Tensor, src_mask: Tensor) -> Tensor:
        attended, _ = self.self_attn(x, x, x, attn_mask=src_mask, need_weights=False)
        x = self.norm1(x + self.dropout1(attended))
        dispatch, combine = top_2_gating(x, self.gate_weight, self.capacity)
        h = torch.einsum("bsec,bsd->becd", dispatch, x)
        h = F.relu(torch.einsum("becd,edh->bech", h, self.w1))
        h = torch.einsum("bech,ehd->becd", h, self.w2)
        return self.norm2(x + torch.einsum("becd,bsec->bsd", h, combine))


class BERT(nn.Module):
    """Token embedding and fixed sinusoidal positions, causal layers, a head of its own over the words."""

    def __init__(self, layers: list[nn.Module], hidden: int, vocab: int, seq: int) -> None:
        super().__init__()
        self.encoder = nn.Embedding(vocab, hidden)
        self.register_buffer("pe", positions(seq, hidden))
        self.register_buffer("src_mask", torch.full((seq, seq), float("-inf")).triu(1))
        self.layers = nn.ModuleList(layers)
        self.decoder = nn.Linear(hidden, vocab)
        self.scale = sqrt(hidden)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.encoder(x) * self.scale + self.pe
        for layer in self.layers:
            x = layer(x, src_mask=self.src_mask)
        words = F.log_softmax(self.decoder(x), 2)
        return F.nll_loss(torch.transpose(words, 1, 2), y, reduction="sum")


def positions(seq: int, hidden: int) -> Tensor:
    """[1, seq, hidden]: sines at even, cosines at odd places, of falling frequency."""
    angles = torch.outer(torch.arange(seq), torch.exp(torch.arange(0, hidden, 2) * (-log(10000.0) / hidden)))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).reshape(1, seq, hidden)


def vgg19(
    devices: int = 8,
    batch: int | None = None,
    channels: int = 64,
    ffn: int = 4096,
    image: int = 32,
    classes: int = 10,
    dropout: float = 0.1,
) -> Made:
    """VGG19. channels: of the first convolution; ffn: width of the two wide linear layers."""
    return VGG19(channels, ffn, classes, dropout), images(devices, batch, image)


def vit(
    layers: int = 8,
    devices: int = 8,
    batch: int | None = None,
    hidden: int = 768,
    heads: int = 12,
    ffn: int = 3072,
    image: int = 32,
    patch: int = 4,
    classes: int = 10,
    dropout: float = 0.1,
) -> Made:
    """ViT on patches of 4 x 4."""
    model = ViT(layers, hidden, heads, ffn, image, patch, classes, dropout)
    return model, images(devices, batch, image)


def bert(
    layers: int = 8,
    devices: int = 8,
    batch: int | None = None,
    hidden: int = 768,
    heads: int = 12,
    ffn: int = 3072,
    vocab: int | None = None,
    seq: int = 128,
    dropout: float = 0.1,
) -> Made:
    """BERT-Base with a causal mask. vocab: WikiText-2's words, padded to a multiple of the devices."""
    vocab = padded_words(devices) if vocab is None else vocab
    held = [encoder_layer(hidden, heads, ffn, dropout) for _ in range(layers)]
    return BERT(held, hidden, vocab, seq), tokens(devices, batch, seq)


def bert_moe(
    layers: int = 8,
    devices: int = 8,
    batch: int | None = None,
    hidden: int = 768,
    heads: int = 12,
    ffn: int = 3072,
    vocab: int | None = None,
    seq: int = 128,
    dropout: float = 0.1,
    experts: int | None = None,
    capacity: int | None = None,
) -> Made:
    """BERT with experts in every second layer: two for each device, with 2.5 places for a token in all."""
    vocab = padded_words(devices) if vocab is None else vocab
    experts = EXPERTS_PER_DEVICE * devices if experts is None else experts
    capacity = ceil(seq / experts * CAPACITY_FACTOR) if capacity is None else capacity
    held = [
        MoELayer(hidden, heads, ffn, experts, capacity, dropout)
        if index % 2
        else encoder_layer(hidden, heads, ffn, dropout)
        for index in range(layers)
    ]
    return BERT(held, hidden, vocab, seq), tokens(devices, batch, seq)


def padded_words(devices: int) -> int:
    return devices * (WORDS // devices + 1)


def images(devices: int, batch: int | None, side: int) -> dict[str, Tensor]:
    samples = batch or SAMPLES_PER_DEVICE * devices
    return {"x": torch.zeros(samples, 3, side, side), "y": torch.zeros(samples, dtype=torch.int64)}


def tokens(devices: int, batch: int | None, seq: int) -> dict[str, Tensor]:
    samples = batch or SAMPLES_PER_DEVICE * devices
    return {name: torch.zeros(samples, seq, dtype=torch.int64) for name in ("x", "y")}
