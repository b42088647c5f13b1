"""Recurrent layers of torch, written out token by token, with the dropout between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._decomp import decompositions

Helper = Callable[..., tuple[Tensor, list[Any]]]


@contextmanager
def recurrence_in_steps() -> Iterator[None]:
    """Inside, an LSTM, GRU or RNN is its products and gates, token by token, and drops as in eager.

    PyTorch writes them out so where no kernel of the CPU's library does it, and forgets the dropout (2.13:
    a probability is kept for layers behind the last one only).
    """
    written: Any = decompositions
    of_library = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with patch.object(written, "_rnn_helper", partial(_layer_by_layer, written._rnn_helper)):
            yield
    finally:
        torch._C._set_mkldnn_enabled(of_library)


def _layer_by_layer(
    helper: Helper,
    values: Tensor,
    hidden: Sequence[Any],
    params: Sequence[Any],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    layer_fn: Callable[..., Any],
) -> tuple[Tensor, list[Any]]:
    """What `helper` computes for each layer alone, and what is dropped between two of them."""
    values = values.transpose(0, 1) if batch_first else values
    last: list[Any] = []
    ways = 2 if bidirectional else 1
    for layer in range(layers):
        own = slice(layer * ways, (layer + 1) * ways)
        values, states = helper(
            values, hidden[own], params[own], has_biases, 1, 0.0, train, bidirectional, False, layer_fn
        )
        last += states
        if dropout and train and layer < layers - 1:
            values = torch.dropout(values, dropout, True)
    return values.transpose(0, 1) if batch_first else values, last
