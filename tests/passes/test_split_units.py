"""Split units against what is known of each architecture, and against the models' own numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from hspmd_compiler.errors import StrategyError
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.passes.dims.infer_dims import infer_dims
from hspmd_compiler.passes.dims.split_candidates import whole_dims
from hspmd_compiler.passes.dims.split_units import (
    Member,
    SplitGroup,
    SplitKind,
    UnitBlock,
    assign,
    find_split_groups,
)
from hspmd_compiler.trace.tracer import trace

from ..quick import quick_are

LLAMA = ("self_attn.q_proj", "mlp.gate_proj")
"""The first weights of its groups."""

Batch = dict[str, torch.Tensor]
Built = tuple[nn.Module, Batch]

# Sizes are ambiguous on purpose: sequence length == head_dim == 8, batch 5, hidden == heads * head_dim.
# One layer where a model differs from another in what a layer is.
IDS = torch.arange(40).reshape(5, 8) * 7 % 96
TEXT = {"input_ids": IDS, "labels": IDS}
SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 1,
    "num_attention_heads": 6,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "use_cache": False,
}


def text_model(name: str, **options: Any) -> Built:
    """A tiny model of a Hugging Face family, by the name before `ForCausalLM`."""
    hf = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(hf, f"{name}Config")(**{**SIZES, "pad_token_id": 0, **options})
    return getattr(hf, f"{name}ForCausalLM")(config), TEXT


def gpt2() -> Built:
    hf = pytest.importorskip("transformers")
    torch.manual_seed(0)
    dropout = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    sizes = {"n_embd": 48, "n_layer": 2, "n_head": 6, "vocab_size": 96, "n_positions": 64}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **dropout, use_cache=False)), TEXT


def bert() -> Built:
    hf = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {**SIZES, "num_hidden_layers": 2}
    config = hf.BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return hf.BertForMaskedLM(config), TEXT


def vit() -> Built:
    hf = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = hf.ViTConfig(
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=1,
        num_attention_heads=6,
        image_size=32,
        patch_size=8,
        num_labels=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        problem_type="single_label_classification",
    )
    return hf.ViTForImageClassification(config), {
        "pixel_values": torch.randn(5, 3, 32, 32),
        "labels": torch.arange(5),
    }


MODELS: dict[str, Callable[[], Built]] = {
    "llama": lambda: text_model("Llama", num_key_value_heads=3, num_hidden_layers=2),
    "llama kv 1": lambda: text_model("Llama", num_key_value_heads=1),
    "llama kv 6": lambda: text_model("Llama", num_key_value_heads=6),
    "llama eager": lambda: text_model("Llama", num_key_value_heads=3, attn_implementation="eager"),
    "llama cube": lambda: text_model(
        "Llama", hidden_size=64, intermediate_size=64, num_attention_heads=8, num_key_value_heads=8
    ),
    "gpt2": gpt2,
    "phi3": lambda: text_model("Phi3", num_key_value_heads=3, resid_pdrop=0.0, embd_pdrop=0.0),
    "phi3 kv 1": lambda: text_model("Phi3", num_key_value_heads=1, resid_pdrop=0.0, embd_pdrop=0.0),
    "qwen3": lambda: text_model("Qwen3", num_key_value_heads=3, head_dim=8),
    "gpt-neox": lambda: text_model("GPTNeoX", hidden_dropout=0.0, attention_dropout=0.0),
    "bert": bert,
    "vit": vit,
}


QUICK = ("llama", "llama kv 1", "llama cube", "gpt2", "phi3", "gpt-neox", "bert", "vit")
"""The slow run has the others: one more number of heads, or a way to compute attention, each."""


@cache
def graph_of(name: str) -> LogicalGraph:
    model, batch = MODELS[name]()
    return trace(model, batch, batch=5)


@cache
def groups_of(name: str) -> tuple[SplitGroup, ...]:
    return find_split_groups(graph_of(name))


def summary(groups: tuple[SplitGroup, ...]) -> dict[str, tuple[int, dict[str, tuple[int, ...]]]]:
    """By group: units, and by parameter (its last names) the dim, then offset, unit, ratio of each piece."""
    return {
        group.name: (
            group.units,
            {
                ".".join(member.param.split(".")[-2:]): (member.dim, *flat(member.pieces))
                for member in group.members
            },
        )
        for group in groups
    }


def flat(pieces: tuple[UnitBlock, ...]) -> list[int]:
    return [number for piece in pieces for number in (piece.offset, piece.unit, piece.ratio)]


def gated_mlp(width: int) -> tuple[int, dict[str, tuple[int, ...]]]:
    return width, {
        "gate_proj.weight": (0, 0, 1, 1),
        "up_proj.weight": (0, 0, 1, 1),
        "down_proj.weight": (1, 0, 1, 1),
    }


def both_layers(**groups: object) -> dict[str, object]:
    return {f"layers.{layer}.{name}": group for layer in range(2) for name, group in groups.items()}


def one_layer(heads: object, hidden: object, first: tuple[str, str]) -> dict[str, object]:
    """Where no layer repeats, a group is named by its first weight."""
    return {f"{first[0]}.heads": heads, f"{first[1]}.hidden": hidden}


def vocabularies(embedding: str = "model.embed_tokens") -> dict[str, object]:
    table = embedding.split(".")[-1]
    return {
        f"{embedding}.vocab": (96, {f"{table}.weight": (0, 0, 1, 1)}),
        "lm_head.vocab": (96, {"lm_head.weight": (0, 0, 1, 1)}),
    }


def separate_heads(heads: int, kv: int) -> tuple[int, dict[str, tuple[int, ...]]]:
    return heads, {
        "q_proj.weight": (0, 0, 8, 1),
        "k_proj.weight": (0, 0, 8, heads // kv),
        "v_proj.weight": (0, 0, 8, heads // kv),
        "o_proj.weight": (1, 0, 8, 1),
    }


def test_grouped_query_attention() -> None:
    expected = both_layers(heads=separate_heads(6, 3), hidden=gated_mlp(80))
    assert summary(groups_of("llama")) == {**expected, **vocabularies()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama eager", "qwen3"])
def test_other_grouped_query_attention(name: str) -> None:
    expected = one_layer(separate_heads(6, 3), gated_mlp(80), LLAMA)
    assert summary(groups_of(name)) == {**expected, **vocabularies()}


@pytest.mark.slow
def test_multi_head_attention() -> None:
    expected = one_layer(separate_heads(6, 6), gated_mlp(80), LLAMA)
    assert summary(groups_of("llama kv 6")) == {**expected, **vocabularies()}


def test_every_size_equal() -> None:
    """Heads, head_dim and sequence length are 8, all widths 64: only the structure tells them apart."""
    expected = one_layer(separate_heads(8, 8), gated_mlp(64), LLAMA)
    assert summary(groups_of("llama cube")) == {**expected, **vocabularies()}


def test_a_single_key_value_head_stays_with_every_rank() -> None:
    heads = 6, {"q_proj.weight": (0, 0, 8, 1), "o_proj.weight": (1, 0, 8, 1)}
    expected = one_layer(heads, gated_mlp(80), LLAMA)
    assert summary(groups_of("llama kv 1")) == {**expected, **vocabularies()}


def test_gpt2_fused_and_tied() -> None:
    fused = (0, 8, 1, 48, 8, 1, 96, 8, 1)
    heads: tuple[int, dict[str, tuple[int, ...]]] = (
        6,
        {"c_attn.weight": (1, *fused), "c_attn.bias": (0, *fused), "c_proj.weight": (0, 0, 8, 1)},
    )
    hidden = (
        192,
        {"c_fc.weight": (1, 0, 1, 1), "c_fc.bias": (0, 0, 1, 1), "c_proj.weight": (0, 0, 1, 1)},
    )
    expected = {f"h.{layer}.heads": heads for layer in range(2)}
    expected |= {f"h.{layer}.hidden": hidden for layer in range(2)}
    vocab = {"transformer.wte.vocab": (96, {"wte.weight": (0, 0, 1, 1)})}
    assert summary(groups_of("gpt2")) == {**expected, **vocab}


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("phi3", (0, 8, 1, 48, 8, 2, 72, 8, 2)),
        pytest.param("phi3 kv 1", (0, 8, 1, 48, 16, 6), marks=pytest.mark.slow),
    ],
)
def test_fused_blocks_of_unequal_size(name: str, blocks: tuple[int, ...]) -> None:
    heads = 6, {"o_proj.weight": (1, 0, 8, 1), "qkv_proj.weight": (0, *blocks)}
    hidden = 80, {"gate_up_proj.weight": (0, 0, 1, 1, 80, 1, 1), "down_proj.weight": (1, 0, 1, 1)}
    expected = one_layer(heads, hidden, ("self_attn.o_proj", "mlp.gate_up_proj"))
    assert summary(groups_of(name)) == {**expected, **vocabularies()}


def test_heads_fused_per_head() -> None:
    heads = (
        6,
        {
            "query_key_value.weight": (0, 0, 24, 1),
            "query_key_value.bias": (0, 0, 24, 1),
            "dense.weight": (1, 0, 8, 1),
        },
    )
    hidden = (
        80,
        {
            "dense_h_to_4h.weight": (0, 0, 1, 1),
            "dense_h_to_4h.bias": (0, 0, 1, 1),
            "dense_4h_to_h.weight": (1, 0, 1, 1),
        },
    )
    expected = one_layer(heads, hidden, ("attention.query_key_value", "mlp.dense_h_to_4h"))
    assert summary(groups_of("gpt-neox")) == {**expected, **vocabularies("gpt_neox.embed_in")}


def column_and_row(columns: tuple[str, ...], row: str, unit: int) -> dict[str, tuple[int, ...]]:
    members: dict[str, tuple[int, ...]] = {}
    for column in columns:
        members |= {f"{column}.weight": (0, 0, unit, 1), f"{column}.bias": (0, 0, unit, 1)}
    return {**members, f"{row}.weight": (1, 0, unit, 1)}


def test_bert() -> None:
    found = summary(groups_of("bert"))
    vocab = {"word_embeddings.weight": (0, 0, 1, 1), "predictions.bias": (0, 0, 1, 1)}
    assert found.pop("embeddings.word_embeddings.vocab") == (96, vocab)
    for layer in range(2):
        heads = column_and_row(("query", "key", "value"), "dense", 8)
        assert found.pop(f"layer.{layer}.heads") == (6, heads)
        hidden = {"dense.weight": (1, 0, 1, 1), "dense.bias": (0, 0, 1, 1)}
        assert found.pop(f"layer.{layer}.hidden") == (80, hidden)
    assert not found


def test_vit() -> None:
    heads = 6, column_and_row(("q_proj", "k_proj", "v_proj"), "o_proj", 8)
    hidden = 80, column_and_row(("fc1",), "fc2", 1)
    classes = 10, {"classifier.weight": (0, 0, 1, 1), "classifier.bias": (0, 0, 1, 1)}
    expected = one_layer(heads, hidden, ("attention.q_proj", "mlp.fc1"))
    assert summary(groups_of("vit")) == {**expected, "classifier.vocab": classes}


def test_kinds_and_layers() -> None:
    found = [(group.kind, group.layer) for group in groups_of("llama")]
    inside = [(kind, layer) for layer in range(2) for kind in (SplitKind.HEADS, SplitKind.HIDDEN)]
    assert found == [(SplitKind.VOCAB, None), *inside, (SplitKind.VOCAB, None)]


def blocks_permuted(group: SplitGroup, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The members with their units in another order, in steps that keep shared elements together."""
    step = max(
        piece.ratio for member in group.members for piece in member.pieces if piece.ratio < group.units
    )
    order = torch.arange(group.units // step).roll(1)
    changed = {}
    for member in group.members:
        rows = torch.arange(state[member.param].shape[member.dim])
        for piece in member.pieces:
            if piece.ratio < group.units:
                count = group.units // step
                block = torch.arange(count * piece.unit * step // piece.ratio).reshape(count, -1)
                rows[piece.offset : piece.offset + block.numel()] = piece.offset + block[order].flatten()
        changed[member.param] = state[member.param].index_select(member.dim, rows)
    return changed


@pytest.mark.parametrize("name", quick_are(MODELS, QUICK))
def test_units_are_interchangeable(name: str) -> None:
    """Units in another order, in all members alike, compute the same loss; in one member they do not."""
    model, batch = MODELS[name]()
    with torch.no_grad():
        for weight in model.double().parameters():
            weight.mul_(8 if weight.dim() > 1 else 1)
    state = model.state_dict()
    batch = {key: value.double() if value.is_floating_point() else value for key, value in batch.items()}

    def loss(changed: dict[str, torch.Tensor]) -> float:
        return float(torch.func.functional_call(model, changed, kwargs=batch).loss.detach())

    base = loss({})
    for group in groups_of(name):
        if group.kind is not SplitKind.VOCAB:
            changed = blocks_permuted(group, state)
            assert loss(changed) == pytest.approx(base, rel=1e-6, abs=0), group.name
            one = group.members[0].param
            assert loss({one: changed[one]}) != pytest.approx(base, rel=1e-6, abs=0), group.name


@pytest.mark.parametrize("name", quick_are(MODELS, QUICK))
def test_every_row_is_held(name: str) -> None:
    model, _ = MODELS[name]()
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    for group in groups_of(name):
        for member in group.members:
            pieces = member.rows(0, group.units)
            assert (pieces[0][0], pieces[-1][1]) == (0, shapes[member.param][member.dim])
            assert all(left[1] == right[0] for left, right in pairwise(pieces))


class Loss(nn.Module):
    """Cross-entropy over a network."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(x), y)


def net_groups(net: nn.Module, features: tuple[int, ...]) -> tuple[SplitGroup, ...]:
    batch = {"x": torch.zeros(1, *features), "y": torch.zeros(1, dtype=torch.long)}
    return find_split_groups(trace(Loss(net), batch, batch=4))


def members(groups: tuple[SplitGroup, ...]) -> list[list[tuple[str, int]]]:
    return [[(member.param, member.dim) for member in group.members] for group in groups]


def linear(column: str, row: str) -> list[tuple[str, int]]:
    return [(f"{column}.weight", 0), (f"{column}.bias", 0), (f"{row}.weight", 1)]


def stack(*sizes: int) -> nn.Sequential:
    layers = [item for pair in pairwise(sizes) for item in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def test_plain_mlp_alternates_columns_and_rows() -> None:
    found = net_groups(stack(8, 8, 8, 8, 8, 8), (8,))
    classes = [("net.8.weight", 0), ("net.8.bias", 0)]
    assert members(found) == [linear("net.0", "net.2"), linear("net.4", "net.6"), classes]
    assert [group.name for group in found] == ["net.0.hidden", "net.4.hidden", "net.8.vocab"]


def test_an_mlp_of_two_splits_its_hidden_width_not_its_classes() -> None:
    assert members(net_groups(stack(8, 8, 8), (8,))) == [linear("net.0", "net.2")]


class Residual(nn.Module):
    """x + down(relu(up(x))), without a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.zz = nn.Linear(8, 8)
        self.aa = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.aa(self.zz(x).relu())


def test_residual_blocks_split_inside_not_the_stream() -> None:
    net = nn.Sequential(nn.Linear(8, 8), Residual(), Residual(), nn.Linear(8, 8))
    found = net_groups(net, (8,))
    classes = [("net.3.weight", 0), ("net.3.bias", 0)]
    assert members(found) == [linear("net.1.zz", "net.1.aa"), linear("net.2.zz", "net.2.aa"), classes]


class FusedAttention(nn.Module):
    """Attention whose fused weight is q, k, v by a view, with a bias table per head."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48, bias=False)
        self.bias = nn.Parameter(torch.zeros(4, 6))
        self.out = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(-1, 6, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1) + self.bias[:, None, :]).softmax(-1)
        return self.out((scores @ v).transpose(1, 2).reshape(-1, 6, 16)).mean(1)


def test_blocks_by_a_view_and_a_bias_per_head() -> None:
    group = net_groups(FusedAttention(), (6, 16))[0]
    assert (group.kind, group.units) == (SplitKind.HEADS, 4)
    assert group.members == (
        Member("net.bias", 0, (UnitBlock(0, 1),)),
        Member("net.qkv.weight", 0, (UnitBlock(0, 4), UnitBlock(16, 4), UnitBlock(32, 4))),
        Member("net.out.weight", 1, (UnitBlock(0, 4),)),
    )


class Between(nn.Module):
    """Two linears with one operation between them."""

    def __init__(self, operation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.operation = operation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.operation(self.first(x)))


WHOLE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "aten.native_layer_norm.default is over it": lambda x: nn.functional.layer_norm(x, (8,)),
    "aten._softmax.default is over it": lambda x: x.softmax(-1),
    "aten.mean.dim is over it": lambda x: x / x.mean(-1, keepdim=True),
    "aten.linalg_vector_norm.default is over it": lambda x: nn.functional.normalize(x, dim=-1),
    "aten.amax.default is over it": lambda x: x - x.amax(-1, keepdim=True),
    "aten.cumsum.default is over it": lambda x: x.cumsum(-1),
    "aten.flip.default is over it": lambda x: x.flip(-1),
    "aten._fft_r2c.default is over it": lambda x: torch.fft.fft(x).real,
    "aten._pdist_forward.default has no rule that keeps it split": lambda x: x + torch.pdist(x).sum(),
    "elements of it are picked by an index": lambda x: x[:, torch.arange(8)],
    "every n-th element of it is picked": lambda x: torch.cat((x[:, ::2], x[:, 1::2]), -1),
    "its parts are regrouped across their boundaries": lambda x: x + torch.cat((x[:, 1:], x[:, :1]), -1),
    "attention computes with whole heads": lambda x: x @ (x.t() @ x),
    "it is padded": lambda x: nn.functional.pad(x, (1, 1))[:, 1:9],
}


@pytest.mark.parametrize("reason", list(WHOLE))
def test_what_must_stay_whole_says_why(reason: str) -> None:
    batch = {"x": torch.zeros(1, 8), "y": torch.zeros(1, dtype=torch.long)}
    graph = trace(Loss(Between(WHOLE[reason])), batch, batch=4)
    assert members(find_split_groups(graph)) == [[("net.second.weight", 0), ("net.second.bias", 0)]]
    assert whole_dims(graph, infer_dims(graph))["net.first.weight", 0] == reason


class OverTokens(Between):
    """As `Between`, of features of several tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).mean(1)


LAST = torch.tensor([5, 0])
KEPT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "hardswish": nn.functional.hardswish,
    "roll": lambda x: x.roll(1, 1),
    "flip": lambda x: x.flip(1),
    "sort": lambda x: x.sort(1).values,
    "topk": lambda x: x.topk(2, 1).values,
    "cumsum": lambda x: x.cumsum(1),
    "gather": lambda x: x.gather(1, x.argsort(1)),
    "scatter": lambda x: x.scatter(1, x.argsort(1)[:, :2], 0.0),
    "amax": lambda x: x.amax(1, keepdim=True),
    "logsumexp": lambda x: x.logsumexp(1, keepdim=True),
    "softmax": lambda x: x.softmax(1),
    "var": lambda x: x.var(1, keepdim=True),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True),
    "unfold": lambda x: x.unfold(1, 2, 2).sum(-1),
    "pad": lambda x: nn.functional.pad(x, (0, 0, 1, 1)),
    "index": lambda x: x[:, LAST],
    "index_select": lambda x: x.index_select(1, LAST),
    "cat and slices": lambda x: torch.cat((x[:, 3:], x[:, :3]), 1),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "max_pool": lambda x: nn.functional.max_pool1d(x.transpose(1, 2), 2).transpose(1, 2),
    "interpolate": lambda x: nn.functional.interpolate(x.transpose(1, 2), scale_factor=2).transpose(1, 2),
}
QUICK_KEPT = ("hardswish", "sort", "index", "cat and slices", "max_pool")
"""Of each kind of rules; every line's letters: tests/rules."""


@pytest.mark.parametrize("operation", quick_are(KEPT, QUICK_KEPT))
def test_features_stay_split_through_what_works_over_tokens(operation: str) -> None:
    found = members(net_groups(OverTokens(KEPT[operation]), (6, 8)))
    assert linear("net.first", "net.second") in found


def test_tables_of_positions_and_norm_weights_stay_whole() -> None:
    graph = graph_of("gpt2")
    reasons = whole_dims(graph, infer_dims(graph))
    assert reasons["transformer.wpe.weight", 0] == "its rows are looked up by computed positions"
    assert reasons["transformer.h.0.ln_1.weight", 0] == "aten.native_layer_norm.default is over it"


@pytest.mark.parametrize(
    ("units", "shares", "expected"),
    [
        (6, (1, 1, 1, 1), [2, 2, 1, 1]),
        (6, (3, 1, 1, 1), [3, 1, 1, 1]),
        (6, (0, 3, 3), [0, 3, 3]),
        (7, (2, 1, 1), [3, 2, 2]),
        (3, (1, 1, 1, 1, 1), [1, 1, 1, 0, 0]),
        (80, (50, 30, 0), [50, 30, 0]),
        (10, (1, 2), [3, 7]),
        (2, (5, 0, 5, 5), [1, 0, 1, 0]),
    ],
)
def test_assign(units: int, shares: tuple[int, ...], expected: list[int]) -> None:
    found = assign(SplitGroup("g", units, None, SplitKind.OTHER, ()), shares)
    assert [high - low for low, high in found] == expected
    assert (found[0][0], found[-1][1]) == (0, units)
    assert all(left[1] == right[0] for left, right in pairwise(found))


@pytest.mark.parametrize("shares", [(0, 0), (2, -1), ()])
def test_assign_refuses_shares_that_divide_nothing(shares: tuple[int, ...]) -> None:
    with pytest.raises(StrategyError, match="can't divide the 6 units"):
        assign(SplitGroup("g", 6, None, SplitKind.OTHER, ()), shares)


def test_rows_of_shared_heads_cover() -> None:
    """Four ranks with 3, 1, 1, 1 query heads hold key heads 0-2, 1-2, 2-3, 2-3: as the query heads need."""
    piece = UnitBlock(offset=16, unit=8, ratio=2)
    units = [(0, 3), (3, 4), (4, 5), (5, 6)]
    assert [piece.rows(*pair) for pair in units] == [(16, 32), (24, 32), (32, 40), (32, 40)]
    assert piece.rows(3, 3) == (24, 24)
