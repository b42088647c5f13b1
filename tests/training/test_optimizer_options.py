"""Which parameters decay, and in which types they are trained, is told; what has no effect is refused."""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.api import CompiledProgram
from hspmd_compiler.base.name_glob import names
from hspmd_compiler.errors import OptionError
from hspmd_compiler.options import OptimizerConfig, OptimizerName, Precision
from hspmd_compiler.pages.sections import sections_to_text

ONE = {"pipelines": [{"stages": [{"devices": [0], "layers": 2}], "micro_batches": [2]}]}
HF_NAMES = (
    "model.embed_tokens.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.0.self_attn.q_proj.bias",
    "model.layers.11.mlp.up_proj.weight",
    "model.norm.weight",
)


class Block(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(4, dtype=dtype)
        self.up = nn.Linear(4, 4, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.up(self.input_layernorm(x)))


class Model(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(dtype) for _ in range(2))
        self.head = nn.Linear(4, 4, bias=False, dtype=dtype)
        self.again = self.head
        self.fixed = nn.Parameter(torch.ones(4, dtype=dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return (self.head(x) * self.fixed).float().square().mean()


def compiled(
    optimizer: OptimizerConfig, dtype: torch.dtype = torch.float32, precision: str = "model"
) -> CompiledProgram:
    inputs = {"x": torch.zeros(2, 4, dtype=dtype)}
    return hspmd.compile(Model(dtype), inputs, strategy=ONE, optimizer=optimizer, precision=precision)


@given(name=st.sampled_from(HF_NAMES), pattern=st.text("*?.norm_layer01weight", max_size=12))
def test_globs_are_those_of_fnmatch(name: str, pattern: str) -> None:
    if any(sign in pattern for sign in "*?["):
        assert names(pattern, name) == fnmatchcase(name, pattern)
    else:
        assert names(pattern, name) >= (name == pattern)


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("*norm.weight", (1, 4)),
        ("*.bias", (2,)),
        ("*norm*", (1, 4)),
        ("model.layers.0.*", (1, 2)),
        ("norm", (4,)),
        ("bias", (2,)),
        ("layers.1", ()),
        ("model", (0, 1, 2, 3, 4)),
    ],
)
def test_what_people_write(pattern: str, wanted: tuple[int, ...]) -> None:
    assert [name for name in HF_NAMES if names(pattern, name)] == [HF_NAMES[index] for index in wanted]


def test_what_decays_is_shown() -> None:
    """One row for the same parameter of all layers, frozen ones left out; the optimizer in one line."""
    config = OptimizerConfig(weight_decay=0.1, no_decay=("*norm.weight", "*.bias"), max_grad_norm=1.0)
    text = sections_to_text(compiled(config).inspect())
    assert (
        "adamw, lr 0.001, betas 0.9 and 0.999, eps 1e-08, weight decay 0.1, gradients clipped to norm 1"
        in text
    )
    table = text[text.index("weight decay\nparameters") :].split("\n\n")[0].splitlines()[2:]
    assert [tuple(line.split()) for line in table] == [
        ("head.weight", "1", "0.1"),
        ("layers.*.up.weight", "2", "0.1"),
        ("layers.*.input_layernorm.bias", "2", "0"),
        ("layers.*.input_layernorm.weight", "2", "0"),
        ("layers.*.up.bias", "2", "0"),
    ]


def test_globs_that_name_nothing_are_told_at_once() -> None:
    globs = ("*.bias", "*layernrom.weight", "LayerNorm.weight", "fixed", "again.*", "*scale")
    with pytest.raises(OptionError, match="no_decay names no trained parameter") as caught:
        compiled(OptimizerConfig(weight_decay=0.1, no_decay=globs))
    assert caught.value.details == (
        ("*layernrom.weight", "names nothing; nearest is layers.*.input_layernorm.weight"),
        ("LayerNorm.weight", "names nothing; nearest is layers.*.input_layernorm.weight"),
        ("fixed", "names only what gets no gradient, such as fixed"),
        ("again.*", "names only what is tied to head.weight, under which it is trained"),
        ("*scale", "names nothing"),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_parameters_are_told_once(dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    """In the log of a compile and in the overview, with the way out, which does away with it."""
    narrow = str(dtype).removeprefix("torch.")
    with caplog.at_level(logging.WARNING, "hspmd_compiler"):
        told = sections_to_text(compiled(OptimizerConfig(eps=1e-4), dtype).inspect())
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"9 parameters are trained in {narrow} itself") and warning in told
    assert "--precision bfloat16" in warning and ("no loss scaling" in warning) == (narrow == "float16")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "hspmd_compiler"):
        masters = compiled(OptimizerConfig(), dtype, Precision.BFLOAT16.value)
    assert not caplog.records and "itself" not in sections_to_text(masters.inspect())
    shards = masters.artifact.program.ranks[0].shards
    assert {shard.dtype for shard in shards} == {"float32"}


def test_an_eps_that_is_zero_in_the_parameters_type_is_refused() -> None:
    """Eager's AdamW divides zero by zero there."""
    with pytest.raises(OptionError, match="eps 1e-08 is zero in float16"):
        compiled(OptimizerConfig(), torch.float16)
    compiled(OptimizerConfig(OptimizerName.SGD, lr=0.1), torch.float16)
