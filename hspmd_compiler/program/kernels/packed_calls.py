"""Packed attention as one call on CUDA: documents of all rows side by side, told by their bounds.

Types of 16 bits go to flash attention, of the library of that name where it is installed, else of PyTorch;
float32 goes to PyTorch's memory-efficient kernel. What none of them takes is computed document by document.
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module, util
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

HALVES = (torch.float16, torch.bfloat16)
WIDTH_MULTIPLE, MOST_WIDTH = 8, 256
"""Widths of heads that flash attention takes."""
STATISTICS_MULTIPLE = 32
"""Of the memory-efficient kernel's log-sum-exps per document."""
CAUSAL_FROM_THE_TOP_LEFT = 1
LIBRARY = "flash_attn"

Gradients = tuple[Tensor, Tensor, Tensor]
CALLS: dict[str, Callable[..., Any]] = {
    "flash": torch.ops.aten._flash_attention_forward.default,
    "flash_backward": torch.ops.aten._flash_attention_backward.default,
    "efficient": torch.ops.aten._efficient_attention_forward.default,
    "efficient_backward": torch.ops.aten._efficient_attention_backward.default,
}


class VarlenForm(Enum):
    """Whose kernel is called."""

    LIBRARY = "library"
    FLASH = "flash"
    EFFICIENT = "efficient"


@dataclass(frozen=True, slots=True)
class DocumentBounds:
    """Where documents of all rows begin, and the end: on the device. lengths: the same on the host."""

    device: Tensor
    lengths: tuple[int, ...]

    @property
    def longest(self) -> int:
        return max(self.lengths)


@dataclass(frozen=True, slots=True)
class VarlenCall:
    """What a kernel is told beside its tensors."""

    form: VarlenForm
    bounds: DocumentBounds
    causal: bool
    window: int
    scale: float

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Of [batch, head, token, width]: the result, and log-sum-exps [batch, head, token]."""
        tensors = [_side_by_side(each) for each in (q, k, v)]
        out, lse = self._library(*tensors) if self.form is VarlenForm.LIBRARY else self._torch(*tensors)
        return _in_rows(out, q), _of_rows(lse, q)

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Gradients:
        """Gradients of q, k and v."""
        tensors = [_side_by_side(each) for each in (grad, q, k, v, out)]
        flat = lse.transpose(0, 1).reshape(q.shape[1], -1).contiguous()
        found = self._gradients(tensors, flat)
        dq, dk, dv = (_in_rows(each, like) for each, like in zip(found, (q, k, v), strict=True))
        return dq, dk, dv

    @property
    def _counted(self) -> tuple[Tensor, Tensor, int, int]:
        """DocumentBounds and the longest document, of queries and of keys."""
        bounds, longest = self.bounds.device, self.bounds.longest
        return bounds, bounds, longest, longest

    @property
    def _sides(self) -> dict[str, int | None]:
        """How many keys before and behind a query it sees; None, or -1 to the library: all."""
        return {"window_size_left": self.window - 1, "window_size_right": 0} if self.window else {}

    def _library(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        more = {"dropout_p": 0.0, "softmax_scale": self.scale, "causal": self.causal, **self._sides}
        out, lse, *_ = library()._flash_attn_varlen_forward(q, k, v, *self._counted, **more)
        return out, lse

    def _torch(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.form is VarlenForm.FLASH:
            flags = (0.0, self.causal, False)
            out, lse, *_ = CALLS["flash"](q, k, v, *self._counted, *flags, scale=self.scale, **self._sides)
            return out, lse
        batched = [each[None] for each in (q, k, v)]
        more = (0.0, self._mask_type, True)
        out, lse, *_ = CALLS["efficient"](*batched, None, *self._counted, *more, scale=self.scale)
        return out[0], torch.cat([lse[at, :, :n] for at, n in enumerate(self.bounds.lengths)], dim=1)

    @property
    def _mask_type(self) -> int:
        return CAUSAL_FROM_THE_TOP_LEFT if self.causal else 0

    def _gradients(self, tensors: list[Tensor], lse: Tensor) -> Gradients:
        if self.form is VarlenForm.LIBRARY:
            return self._library_gradients(tensors, lse)
        nothing = torch.zeros(2, dtype=torch.int64, device=lse.device)
        if self.form is VarlenForm.FLASH:
            flags = (0.0, self.causal, nothing, nothing[0])
            told = (lse, *self._counted, *flags)
            dq, dk, dv = CALLS["flash_backward"](*tensors, *told, scale=self.scale, **self._sides)
            return dq, dk, dv
        grad, q, k, v, out = (each[None] for each in tensors)
        more = (self._by_document(lse), 0.0, nothing[0], nothing[0], self._mask_type, False)
        given = (grad, q, k, v, None, out, *self._counted, *more)
        dq, dk, dv, _ = CALLS["efficient_backward"](*given, scale=self.scale)
        return dq[0], dk[0], dv[0]

    def _library_gradients(self, tensors: list[Tensor], lse: Tensor) -> Gradients:
        slopes = [torch.empty_like(each) for each in tensors[1:4]]
        sides = self._sides or {"window_size_left": -1, "window_size_right": -1}
        more = {"dropout_p": 0.0, "softmax_scale": self.scale, "causal": self.causal, "softcap": 0.0, **sides}
        more |= {"alibi_slopes": None, "deterministic": False}
        library()._flash_attn_varlen_backward(*tensors, lse, *slopes, *self._counted, **more)
        return slopes[0], slopes[1], slopes[2]

    def _by_document(self, lse: Tensor) -> Tensor:
        """[document, head, token], padded as the memory-efficient kernel pads it."""
        lengths = self.bounds.lengths
        room = -(-self.bounds.longest // STATISTICS_MULTIPLE) * STATISTICS_MULTIPLE
        padded = lse.new_full((len(lengths), lse.shape[0], room), math.inf)
        for at, piece in enumerate(torch.split(lse, list(lengths), dim=1)):
            padded[at, :, : lengths[at]] = piece
        return padded


def varlen_call(
    q: Tensor, v: Tensor, starts: Tensor, causal: bool, window: int, scale: float | None
) -> VarlenCall | None:
    """The one call that computes it; None where no kernel takes it."""
    form = form_of(q.dtype, q.shape[-1], v.shape[-1], window, has_library())
    if form is None:
        return None
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return VarlenCall(form, bounds_of(starts, q.device), causal, window, factor)


def form_of(
    dtype: torch.dtype, width: int, value_width: int, window: int, with_library: bool
) -> VarlenForm | None:
    """Whose kernel takes heads of this type and width; None: nobody's."""
    if dtype in HALVES and width == value_width and width % WIDTH_MULTIPLE == 0 and width <= MOST_WIDTH:
        return VarlenForm.LIBRARY if with_library else VarlenForm.FLASH
    if dtype in (*HALVES, torch.float32) and not window:
        return VarlenForm.EFFICIENT
    return None


@cache
def has_library() -> bool:
    """Whether flash-attn is installed."""
    return util.find_spec(LIBRARY) is not None


@cache
def library() -> Any:
    """flash-attn's calls with log-sum-exps."""
    return import_module(f"{LIBRARY}.flash_attn_interface")


_known: MutableMapping[Tensor, dict[torch.device, DocumentBounds]] = WeakIdKeyDictionary()
"""By documents of a micro-batch: all layers of all its passes ask for the same bounds."""


def bounds_of(starts: Tensor, device: torch.device) -> DocumentBounds:
    """DocumentBounds of documents, moved to a device once."""
    of_device = _known.setdefault(starts, {})
    if device not in of_device:
        count, length = starts.shape
        own = starts + torch.arange(count)[:, None] * length
        bounds = [*torch.unique(own).tolist(), count * length]
        moved = torch.tensor(bounds, dtype=torch.int32).to(device, non_blocking=True)
        of_device[device] = DocumentBounds(moved, tuple(high - low for low, high in pairwise(bounds)))
    return of_device[device]


def _side_by_side(x: Tensor) -> Tensor:
    """[token of all rows, head, width]."""
    return x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3]).contiguous()


def _in_rows(x: Tensor, like: Tensor) -> Tensor:
    """[batch, head, token, width], tokens outermost in memory."""
    return x.reshape(like.shape[0], like.shape[2], like.shape[1], x.shape[-1]).transpose(1, 2)


def _of_rows(lse: Tensor, like: Tensor) -> Tensor:
    """[batch, head, token] of [head, token of all rows]."""
    return lse.reshape(like.shape[1], like.shape[0], like.shape[2]).transpose(0, 1).contiguous()
