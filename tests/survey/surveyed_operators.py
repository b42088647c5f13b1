"""Modules and functions that people train with, each made for a layer of the survey."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from .surveyed_models import INNER, TOKENS, Apply, Make, Weighted, Wrapped

Shape = tuple[int, ...] | None
Entry = tuple[Make, Shape]
SIGNAL, IMAGE, VOLUME = (4, 6), (4, 4, 4), (4, 4, 4, 4)
PLAIN = """
    ELU Hardshrink Hardsigmoid Hardtanh Hardswish LeakyReLU LogSigmoid PReLU ReLU ReLU6 SELU CELU GELU GLU
    Sigmoid SiLU Mish Softplus Softshrink Softsign Tanh Tanhshrink Identity
"""
IN_PLACE = "ReLU ReLU6 Hardtanh LeakyReLU ELU SELU CELU SiLU Mish Hardswish Hardsigmoid"
RECURRENT = "RNN LSTM GRU"


def entries() -> dict[str, Entry]:
    """All of them, by name."""
    found: dict[str, Entry] = {f"nn.{name}": (getattr(nn, name), None) for name in PLAIN.split()}
    for name in IN_PLACE.split():
        found[f"nn.{name} in place"] = (partial(getattr(nn, name), inplace=True), None)
    for name in RECURRENT.split():
        found[f"nn.{name}"] = (partial(_recurrent, getattr(nn, name)), None)
    found |= {f"nn.{name}": entry for name, entry in MODULES.items()}
    found |= {name: (lambda use=use: use, None) for name, use in FUNCTIONS.items()}  # type: ignore[misc]
    for name, (shape, use) in OF_WEIGHTS.items():
        found[name] = (lambda s=shape, u=use: Weighted(s, u), None)  # type: ignore[misc]
    return found


def _recurrent(made: Callable[..., nn.Module]) -> nn.Module:
    """In two layers and both directions."""
    return Wrapped(made(INNER, 5, 2, batch_first=True, bidirectional=True), lambda m, x: m(x)[0])


def _attention() -> nn.Module:
    return Wrapped(nn.MultiheadAttention(INNER, 2, batch_first=True), lambda m, x: m(x, x, x)[0])


def _bilinear() -> nn.Module:
    return Wrapped(nn.Bilinear(INNER, INNER, 3), lambda m, x: m(x, x.tanh()))


def _unpooling() -> nn.Module:
    return Wrapped(nn.MaxUnpool2d(2), lambda m, x: m(*F.max_pool2d(x, 2, return_indices=True)))


def _encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(INNER, 2, 12, dropout=0.0, batch_first=True)


def _decoder() -> nn.Module:
    layer = nn.TransformerDecoderLayer(INNER, 2, 12, dropout=0.0, batch_first=True)
    return Wrapped(layer, lambda m, x: m(x, x.flip(1)))


MODULES: dict[str, Entry] = {
    "GLU over tokens": (lambda: nn.GLU(1), None),
    "PReLU per token": (lambda: nn.PReLU(TOKENS), None),
    "Threshold": (lambda: nn.Threshold(0.1, 0.5), None),
    "Softmax": (lambda: nn.Softmax(-1), None),
    "LogSoftmax": (lambda: nn.LogSoftmax(1), None),
    "Softmax2d": (nn.Softmax2d, IMAGE),
    "LayerNorm": (lambda: nn.LayerNorm((TOKENS, INNER)), None),
    "RMSNorm": (lambda: nn.RMSNorm(INNER, eps=1e-6), None),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4, affine=True), IMAGE),
    "BatchNorm2d in evaluation": (lambda: nn.BatchNorm2d(4).eval(), IMAGE),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), IMAGE),
    "Bilinear": (_bilinear, None),
    "Conv1d circular": (lambda: nn.Conv1d(4, 5, 3, padding=1, padding_mode="circular"), SIGNAL),
    "Conv1d reflect": (lambda: nn.Conv1d(4, 5, 3, padding=1, padding_mode="reflect"), SIGNAL),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), IMAGE),
    "Conv3d": (lambda: nn.Conv3d(4, 4, 2), VOLUME),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 2, groups=2, stride=2), IMAGE),
    "Unfold": (lambda: nn.Unfold(2), IMAGE),
    "Fold": (lambda: nn.Fold((4, 4), 2, stride=2), (12, 4)),
    "MaxPool1d": (lambda: nn.MaxPool1d(2), SIGNAL),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), IMAGE),
    "MaxUnpool2d": (_unpooling, IMAGE),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 1, 1, count_include_pad=False), IMAGE),
    "LPPool2d": (lambda: nn.LPPool2d(2, 2), IMAGE),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(3), SIGNAL),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(1), IMAGE),
    "AdaptiveMaxPool3d": (lambda: nn.AdaptiveMaxPool3d(2), VOLUME),
    "ReflectionPad2d": (lambda: nn.ReflectionPad2d((1, 2, 0, 1)), IMAGE),
    "ReplicationPad3d": (lambda: nn.ReplicationPad3d(1), VOLUME),
    "ZeroPad1d": (lambda: nn.ZeroPad1d(1), SIGNAL),
    "Upsample nearest": (lambda: nn.Upsample(scale_factor=2), IMAGE),
    "Upsample linear": (lambda: nn.Upsample(scale_factor=2, mode="linear"), SIGNAL),
    "Upsample bilinear": (lambda: nn.Upsample(size=(7, 5), mode="bilinear", align_corners=True), IMAGE),
    "Upsample bicubic": (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), IMAGE),
    "Upsample antialiased": (
        lambda: lambda x: F.interpolate(x, (3, 3), mode="bilinear", antialias=True),
        IMAGE,
    ),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), IMAGE),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), IMAGE),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(2), IMAGE),
    "LSTMCell": (lambda: Wrapped(nn.LSTMCell(INNER, 5), lambda m, x: m(x[:, 0], m(x[:, 1]))[0]), None),
    "GRUCell": (lambda: Wrapped(nn.GRUCell(INNER, 5), lambda m, x: m(x[:, 0], m(x[:, 1]))), None),
    "MultiheadAttention": (_attention, None),
    "TransformerEncoderLayer": (_encoder, None),
    "TransformerDecoderLayer": (_decoder, None),
    "CosineSimilarity": (lambda: lambda x: F.cosine_similarity(x, x.tanh(), -1), None),
    "PairwiseDistance": (lambda: lambda x: F.pairwise_distance(x, x.tanh()), None),
    "weight_norm": (lambda: parametrizations.weight_norm(nn.Linear(INNER, 5)), None),
    "spectral_norm in evaluation": (lambda: parametrizations.spectral_norm(nn.Linear(INNER, 5)).eval(), None),
}


def _place(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 1] = x[:, 0].clone().sin()
    return x


def _rows(x: Tensor) -> Tensor:
    return x[torch.arange(len(x)), (x[:, :, 0] > 0).sum(1).clamp(max=TOKENS - 1)]


def _masked(x: Tensor) -> Tensor:
    x = x.sin()
    x[x > 0] = 0.5
    return x


def _complex(x: Tensor) -> Tensor:
    """Neighbours in the last dim as the parts of complex numbers."""
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())


FUNCTIONS: dict[str, Apply] = {
    "aminmax": lambda x: sum(torch.aminmax(x, dim=-1)),  # type: ignore[return-value, arg-type]
    "argsort": lambda x: x.gather(-1, x.argsort(-1)),
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([-0.5, 0.0, 0.5])) * x,
    "cdist": lambda x: torch.cdist(x, x.tanh() + 3),
    "as_strided": lambda x: x.sin().as_strided((len(x), 3, 2, INNER), (TOKENS * INNER, INNER, INNER, 1)),
    "diag_embed": lambda x: torch.diag_embed(x).flatten(2),
    "diagonal": lambda x: (x @ x.mT).diagonal(1, 1, 2),
    "fft": lambda x: torch.fft.fft(x, dim=1).real,
    "fft2": lambda x: torch.fft.fft2(x, norm="forward").imag,
    "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=-1, norm="ortho"), n=7, dim=-1),
    "stft": lambda x: torch.stft(x.flatten(1), 8, return_complex=True, window=torch.hann_window(8)).abs(),
    "unfold": lambda x: x.unfold(1, 2, 1).flatten(2),
    "det": lambda x: torch.linalg.det(x @ x.mT + torch.eye(TOKENS)).unsqueeze(-1),
    "eigh": lambda x: torch.linalg.eigh(x @ x.mT)[0],
    "matrix_exp": lambda x: torch.matrix_exp((x @ x.mT).tanh()),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(TOKENS)),
    "inverse": lambda x: torch.inverse((x @ x.mT).tanh() + 5 * torch.eye(TOKENS)),
    "solve": lambda x: torch.linalg.solve((x @ x.mT).tanh() + 5 * torch.eye(TOKENS), x),
    "qr": lambda x: torch.linalg.qr(x.mT)[0],
    "slogdet": lambda x: torch.linalg.slogdet(x @ x.mT + torch.eye(TOKENS))[1].unsqueeze(-1),
    "solve_triangular": lambda x: torch.linalg.solve_triangular(
        (x @ x.mT).tril() + 3 * torch.eye(TOKENS), x, upper=False
    ),
    "svd": lambda x: torch.linalg.svd(x, full_matrices=False)[1],
    "complex": lambda x: _complex(x).abs(),
    "complex out of parts": lambda x: torch.view_as_real(torch.complex(x.sin(), x) * x),
    "conj": lambda x: torch.view_as_real(_complex(x).conj().resolve_conj()),
    "imag": lambda x: torch.cat([(_complex(x).conj() * 2).imag, _complex(x).conj().imag], -1),
    "cross": lambda x: torch.linalg.cross(x[..., :3], x[..., 3:6]),
    "cummax": lambda x: x.cummax(-1)[0],
    "cumprod": lambda x: x.cumprod(-1),
    "diff": lambda x: x.diff(dim=-1),
    "flip": lambda x: x.flip(-1),
    "index_add": lambda x: x.index_add(1, torch.tensor([0, 2]), x[:, :2]),
    "index_copy": lambda x: x.index_copy(1, torch.tensor([0, 2]), x[:, :2].sin()),
    "index_fill": lambda x: x.index_fill(1, torch.tensor([0, 2]), 0.5),
    "index_select": lambda x: x.index_select(1, torch.tensor([2, 0])),
    "isin": lambda x: torch.isin(x.round(), torch.tensor([0.0, 1.0])) * x,
    "kthvalue": lambda x: x.kthvalue(2, -1)[0],
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "max along a dim": lambda x: x.max(-1)[0],
    "median": lambda x: x.median(-1)[0],
    "norm": lambda x: x.norm(p=3, dim=1),
    "prod": lambda x: x.prod(-1),
    "quantile": lambda x: x.quantile(0.3, dim=-1),
    "renorm": lambda x: x.renorm(2, 0, 0.5),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=1),
    "roll": lambda x: x.roll((1, -2), (1, 2)),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(-1, (x > 0).long(), x),
    "scatter_reduce": lambda x: torch.zeros_like(x).scatter_reduce(-1, (x > 0).long(), x, "amax"),
    "sort": lambda x: x.sort(-1)[0],
    "stack": lambda x: torch.stack([x, x.tanh()], 1),
    "std": lambda x: x.std(-1),
    "topk": lambda x: x.topk(2, 1)[0],
    "triu": lambda x: x.triu(1),
    "var_mean": lambda x: torch.stack(torch.var_mean(x, -1), -1),
    "x[:, 1] = y": _place,
    "x[:, [0, 2]]": lambda x: x[:, [0, 2]],
    "x[arange, i]": _rows,
    "x[mask] = 0.5": _masked,
}
OF_WEIGHTS: dict[str, tuple[tuple[int, ...], Apply]] = {
    "filter over frequencies": (
        (3, INNER, 2),
        lambda x, w: torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.view_as_complex(w), n=TOKENS, dim=1),
    ),
    "complex product": (
        (4, 4, 2),
        lambda x, w: torch.view_as_real(_complex(x) @ torch.view_as_complex(w).mH),
    ),
    "mv": ((INNER,), lambda x, w: x @ w),
    "einsum": ((2, INNER, 3), lambda x, w: torch.einsum("bti,hio->bhto", x, w)),
    "baddbmm": ((TOKENS, TOKENS), lambda x, w: torch.baddbmm(w.unsqueeze(0), x, x.transpose(1, 2))),
    "w.cumsum": ((INNER,), lambda x, w: x * w.cumsum(0)),
    "w.roll": ((INNER,), lambda x, w: x * w.roll(1)),
    "w.sort": ((INNER,), lambda x, w: x * w.sort()[0]),
    "w.std": ((INNER,), lambda x, w: x / w.std()),
    "w[indices]": ((3, INNER), lambda x, w: x + w[(x[..., 0] > 0).long()]),
    "w/w.norm()": ((INNER,), lambda x, w: x * w / w.norm()),
}
