"""Cases that users of other tools for distributed training ran into; here each has the right value."""

from __future__ import annotations

from functools import cache
from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hspmd_compiler.base.comm_plan import Combine
from hspmd_compiler.ir.annotated import CommMarker
from hspmd_compiler.layout.layout import Axis, Factor, make_layout, whole
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.passes.resolve_comm import CommResolver
from hspmd_compiler.program.arrays import TorchArrays
from hspmd_compiler.program.program import Program
from hspmd_compiler.runtime.gradient_norm import global_norm
from hspmd_compiler.runtime.shards import owned_grads
from hspmd_compiler.strategy.strategy import Override, Strategy
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.verify.training import ShardUpdate
from hspmd_compiler.verify.values import Rank, lockstep_step, start_ranks, whole_params
from hspmd_compiler.verify.widen import widen_program

from ..quick import quick_are
from ..training.equal_to_eager import EXACT, Case
from ..training.training_cases import Batch, gpt2, tokens

SAMPLES = 10


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def vectors(width: int, classes: int, samples: int = SAMPLES) -> Batch:
    y = torch.randint(0, classes, (samples,), generator=torch.Generator().manual_seed(1))
    return {"x": numbers(samples, width), "y": y}


def one_stage(
    ranks: int, layers: int, *overrides: Override, micro_batches: tuple[int, ...] = (6, 4)
) -> Strategy:
    return Strategy((P((S(tuple(range(ranks)), (0, layers)),), micro_batches),), overrides=overrides)


def held(program: Program, name: str) -> list[tuple[int, ...]]:
    """The shape that each rank holds of a parameter."""
    return [shard.shape for rank in program.ranks for shard in rank.shards if shard.name == name]


def trained(case: Case, program: Program) -> tuple[list[Rank], dict[str, Tensor]]:
    """The ranks after one SGD step in float64, and the whole parameters."""
    ranks = start_ranks(widen_program(program), case.state)
    lockstep_step(ranks, case.batch, ShardUpdate(OptimizerConfig(name=OptimizerName.SGD, lr=0.1)))
    return ranks, whole_params(ranks)


class Layers(nn.Module):
    """Some layers, and the loss of their result."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(x, y)


class Centred(nn.Module):
    """The mean over features is taken away."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, width), nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.up(x).exp()
        out: Tensor = self.down(inner / inner.mean(-1, keepdim=True))
        return out


def test_a_mean_over_a_dim_split_3_to_1_is_the_global_mean() -> None:
    """Elsewhere each device takes the mean of its own part, and the means are averaged evenly."""
    case = Case.of(lambda: Layers(Centred(8), nn.Linear(6, 3)), vectors(6, 3))
    features = Override("up", split=0, shares=(3, 1))
    program = case.check(one_stage(2, 2, features))
    assert held(program, "layers.0.up.weight") == [(6, 6), (2, 6)]
    case.check(Strategy((P((S((0,), (0, 2)),), (6, 3)), P((S((1,), (0, 2)),), (1,)))))


def test_columns_of_unequal_pieces_gather_in_order() -> None:
    """Elsewhere a gather assumes equal pieces: columns are cut off, or come from another rank."""
    bounds = list(pairwise(accumulate((2, 3, 4, 5), initial=0)))
    cut = Factor(14, Axis.TENSOR, tuple(((low, high),) for low, high in bounds))
    marker = CommMarker(make_layout(((Factor(2),), (cut,))), whole((2, 14)), Combine.COPY, 0, 0)
    (steps,) = CommResolver().steps(marker, (0, 1, 2, 3), 0, "float32")
    wanted, arrays = numbers(2, 14), TorchArrays()
    sent = {rank: arrays.cut(steps[rank], wanted[:, low:high]) for rank, (low, high) in enumerate(bounds)}
    for rank, step in steps.items():
        arrived = {peer: parts[rank] for peer, parts in sent.items() if rank in parts}
        assert torch.equal(arrays.paste(step, arrived), wanted)


def test_a_parameter_of_unequal_columns_is_trained_as_a_whole() -> None:
    """The same (2, 14) tensor as a parameter: its columns come back to their places after training."""
    case = Case.of(lambda: Layers(nn.Linear(14, 2), nn.Linear(2, 3)), vectors(14, 3))
    program = case.check(one_stage(4, 2, Override("layers.0.weight", split=1, shares=(2, 3, 4, 5))))
    assert held(program, "layers.0.weight") == [(2, 2), (2, 3), (2, 4), (2, 5)]
    check_update(case, program)


def check_update(case: Case, program: Program) -> dict[str, Tensor]:
    """After one step every parameter is its start less 0.1 of eager's gradient."""
    _, params = trained(case, program)
    for name, grad in case.eager.grads.items():
        assert torch.allclose(params[name], case.state[name] - 0.1 * grad, rtol=EXACT, atol=EXACT), name
    return params


def test_five_rows_over_four_ranks_gather_to_five_rows() -> None:
    """Elsewhere pieces are padded to two rows each, and eight rows come back."""
    case = Case.of(lambda: Layers(nn.Linear(6, 5), nn.Linear(5, 3)), vectors(6, 3))
    program = case.check(one_stage(4, 2, Override("layers.0", split=0)))
    assert held(program, "layers.0.weight") == [(2, 6), (1, 6), (1, 6), (1, 6)]
    assert check_update(case, program)["layers.0.weight"].shape == (5, 6)


def test_nine_columns_row_parallel_over_two() -> None:
    """Elsewhere refused, or the ninth column is dropped, since two does not divide nine."""
    case = Case.of(lambda: Layers(nn.Linear(6, 9), nn.Linear(9, 3)), vectors(6, 3))
    program = case.check(one_stage(2, 2, Override("layers.1.weight", split=1)))
    assert held(program, "layers.1.weight") == [(3, 5), (3, 4)]
    check_update(case, program)


class Dummies(nn.Module):
    """Every layer makes a tensor of the ids' shape, as models do for position ids and masks."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, ids: Tensor, y: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in self.layers:
            places = torch.ones_like(ids).cumsum(-1) + torch.zeros(ids.shape, dtype=torch.int64)
            x = layer(x) * places.unsqueeze(-1)
        return functional.cross_entropy(x.mean(1), y)


def test_one_lookup_only_however_many_stages_need_the_shape_of_the_ids() -> None:
    """Elsewhere the shape is taken from the embedding's result, and every stage looks it up again."""
    generator = torch.Generator().manual_seed(0)
    batch = {
        "ids": torch.randint(0, 11, (SAMPLES, 5), generator=generator),
        "y": torch.randint(0, 8, (SAMPLES,), generator=generator),
    }
    stages = tuple(S((rank,), (rank, rank + 1)) for rank in range(3))
    program = Case.of(Dummies, batch).check(Strategy((P(stages, (4, 4, 2)),)))
    assert calls(program, "aten.embedding.default") == [1, 0, 0]
    assert calls(program, "aten.addmm.default") == [1, 1, 1]
    assert held(program, "table.weight") == [(11, 8)]


def calls(program: Program, op: str) -> list[int]:
    """How often each rank calls an operator in the forward of its first micro-batch."""
    forwards = [program.classes[rank.class_name].segments[0] for rank in program.ranks]
    return [sum(row.op == op for row in forward.rows) for forward in forwards]


def llama(layers: int, heads: int, kv_heads: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=2 * heads,
            intermediate_size=14,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            vocab_size=36,
            max_position_embeddings=8,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).train()


@cache
def gpt2_case() -> Case:
    """Traced once."""
    return Case.of(gpt2, tokens(0))


@cache
def llama_case(heads: int, kv_heads: int) -> Case:
    """One layer, traced once."""
    return Case.of(lambda: llama(1, heads, kv_heads), tokens(0))


def padded() -> Batch:
    """Tokens with a mask: the first tokens of some samples are padding."""
    batch = tokens(0)
    mask = torch.ones_like(batch["input_ids"])
    for row in range(SAMPLES):
        mask[row, : row % 4] = 0
    return {**batch, "attention_mask": mask}


def test_llama_with_an_attention_mask_and_no_cache_in_three_stages() -> None:
    """Elsewhere the mask does not reach the later stages, or a missing cache stops the split."""
    case = Case.of(lambda: llama(3, 4, 2), padded())
    stages = (S((0,), (0, 1)), S((1, 2), (1, 2)), S((3,), (2, 3)))
    case.check(Strategy((P(stages, (4, 3, 3)),)))


@pytest.mark.parametrize("ranks", quick_are((1, 2), (2,)))
def test_the_gradient_norm_does_not_depend_on_micro_batches(ranks: int) -> None:
    """Elsewhere gradients are averaged over micro-batches of unlike numbers of tokens."""
    case = llama_case(4, 2)
    wanted = torch.cat([grad.flatten() for grad in case.eager.grads.values()]).norm().item()
    norms = []
    for micro_batches in ((10,), (5, 5), (2, 2, 2, 2, 2)):
        program = case.check(one_stage(ranks, 1, micro_batches=micro_batches))
        norms.append(norm_of(trained(case, program)[0]))
    assert norms == pytest.approx([wanted] * 3, rel=1e-12)


def norm_of(ranks: list[Rank]) -> float:
    """The norm that the runtime reports, all ranks in this process."""
    shares: list[Tensor] = []

    def norm(rank: Rank, total: Tensor | None) -> float:
        def add_up(share: Tensor) -> Tensor:
            shares.append(share)
            return share if total is None else total

        owned = owned_grads(rank.plan.program.shards, rank.state.synced)
        return global_norm(owned, torch.device("cpu"), add_up)

    for rank in ranks:
        norm(rank, None)
    return norm(ranks[0], torch.stack(shares).sum(0))


@pytest.mark.parametrize("zero", quick_are(range(4), (0, 3)))
def test_a_tied_embedding_with_two_pipelines_of_two_stages(zero: int) -> None:
    """Elsewhere the two ends are trained apart, or the gradient is counted twice; under ZeRO, refused."""
    case = gpt2_case()
    first, second = (
        P((S((r,), (0, 1)), S((r + 1,), (1, 2))), sizes) for r, sizes in ((0, (4, 2)), (2, (3, 1)))
    )
    program = case.check(Strategy((first, second), zero=zero))
    assert len(held(program, "transformer.wte.weight")) == 4
    check_update(case, program)


@pytest.mark.parametrize("ranks", [3, 5])
@pytest.mark.parametrize("kv_heads", quick_are((15, 5, 3), (5,)))
def test_fifteen_heads_over_three_and_five_ranks(ranks: int, kv_heads: int) -> None:
    """Elsewhere the degree must be a power of two, or divide the key-value heads, too."""
    llama_case(15, kv_heads).check(one_stage(ranks, 1))


class ClassToken(nn.Module):
    """As vision transformers begin: a learned token before the others, and learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 12))
        self.places = nn.Parameter(torch.zeros(1, 5, 12))
        layer = nn.TransformerEncoderLayer
        self.layers = nn.ModuleList(layer(12, 6, 24, dropout=0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x[:, 0]), y)


@cache
def class_token_case() -> Case:
    """Traced once."""
    return Case.of(ClassToken, {"x": numbers(SAMPLES, 4, 12), "y": vectors(1, 3)["y"]})


LENGTH_ONE = {
    "tp 3": one_stage(3, 2),
    "sp 3": Strategy((P((S((0, 1, 2), (0, 2)),), (6, 4)),), sequence_parallel=True),
    "dp 2 to 1": Strategy((P((S((0,), (0, 2)),), (4, 2)), P((S((1, 2), (0, 2)),), (4,)))),
}


@pytest.mark.parametrize("strategy", LENGTH_ONE)
def test_a_parameter_with_a_dim_of_length_one_has_its_whole_gradient_on_every_rank(strategy: str) -> None:
    """Elsewhere a dim of length 1 passes for the samples' dim, and ranks keep gradients of their own."""
    case = class_token_case()
    program = case.check(LENGTH_ONE[strategy])
    ranks, _ = trained(case, program)
    assert len(ranks) == 3
    for name in ("token", "places"):
        for rank in ranks:
            found = rank.state.synced[name]
            assert torch.allclose(found, case.eager.grads[name], rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_norm_weights_and_biases_are_trained(sequence_parallel: bool) -> None:
    """Elsewhere they are left out of the optimizer's groups, or their gradients are not reduced."""
    case = gpt2_case()
    pipelines = (P((S((0, 1), (0, 2)),), (4, 2)), P((S((2,), (0, 1)), S((3,), (1, 2))), (4,)))
    program = case.check(Strategy(pipelines, sequence_parallel=sequence_parallel))
    params = check_update(case, program)
    norms = [name for name in params if "ln_" in name]
    assert len(norms) == 10
    for name in norms:
        assert bool((params[name] != case.state[name]).any()), name


def test_thirty_layers_over_seven_stages_are_thirty_layers() -> None:
    """Elsewhere each stage gets 30 // 7 layers, and the model is trained with 28."""
    case = Case.of(lambda: Layers(*(nn.Linear(6, 6) for _ in range(30))), vectors(6, 6))
    bounds = list(accumulate((5, 5, 4, 4, 4, 4, 4), initial=0))
    stages = tuple(S((rank,), (bounds[rank], bounds[rank + 1])) for rank in range(7))
    program = case.check(Strategy((P(stages, (4, 4, 2)),)))
    layers = [shard.name for rank in program.ranks for shard in rank.shards if shard.name.endswith("weight")]
    assert sorted(layers) == sorted(f"layers.{layer}.weight" for layer in range(30))
    check_update(case, program)
