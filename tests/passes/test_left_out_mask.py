"""Documents of a row see themselves only, beside a mask of ones and a cache of keys too, which hide them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.artifact.store import load
from hspmd_compiler.errors import RunError
from hspmd_compiler.program.program import InputKind, Program
from hspmd_compiler.runtime.batches.data import BatchShape
from hspmd_compiler.verify.eager import eager_model, eager_step, whole_state
from hspmd_compiler.verify.values import simulate
from hspmd_compiler.verify.widen import widen_program

from ..training.training_cases import VOCAB, llama

Batch = dict[str, Tensor]
FORM = {
    "pipelines": [
        {"stages": [{"devices": [0, 1], "layers": 1}], "micro_batches": [2]},
        {"stages": [{"devices": [2], "layers": 1}], "micro_batches": [1]},
    ]
}
PACKED = {
    "pipelines": [{**each, "micro_batches": [1]} for each in FORM["pipelines"]],
    "sizes": {"tokens": [1, 64]},
}
DOCUMENTS = ((3, 1, 5), (9,), (1, 8))


def model(cached: bool = False, attention: str = "sdpa") -> nn.Module:
    torch.manual_seed(0)
    made = llama(2, layers=1)
    made.config.use_cache = cached
    made.config._attn_implementation = attention
    return made


def packs(masked: bool = True) -> Batch:
    """Rows of documents, whose last token has no target."""
    positions = torch.stack([torch.cat([torch.arange(each) for each in row]) for row in DOCUMENTS])
    ids = torch.randint(VOCAB, positions.shape, generator=torch.Generator().manual_seed(1))
    last = torch.cat([positions[:, 1:] == 0, torch.ones(len(ids), 1, dtype=torch.bool)], 1)
    labels = ids.roll(-1, 1).masked_fill(last, -100)
    batch = {"input_ids": ids, "labels": ids, "shift_labels": labels, "position_ids": positions}
    return {**batch, "attention_mask": torch.ones_like(ids)} if masked else batch


def alone(of: nn.Module) -> float:
    """The loss of the documents, each in a call of its own; of those of one token there is none."""
    state, total, count = whole_state(of), 0.0, 0
    batch = packs(masked=False)
    for row, lengths in enumerate(DOCUMENTS):
        for at, length in enumerate(lengths):
            low = sum(lengths[:at])
            one = {key: value[row : row + 1, low : low + length] for key, value in batch.items()}
            targets = int((one["shift_labels"] != -100).sum())
            if targets:
                total += targets * eager_step(eager_model(lambda: model(), state, True), one, True).loss
                count += targets
    return total / count


def loss_of(program: Program, of: nn.Module) -> float:
    read = {key: value for key, value in packs().items() if key in program.inputs}
    state = {key: value.double() for key, value in whole_state(of).items()}
    return simulate(widen_program(program), state, [read]).losses[0]


def reads_documents(program: Program) -> bool:
    segments = [segment for shared in program.classes.values() for segment in shared.segments]
    return any(item.kind is InputKind.DOCUMENTS for segment in segments for item in segment.inputs)


CALLED = {
    (True, False): "no attention_mask, which is all ones",
    (True, True): "use_cache off and no attention_mask, which is all ones",
    (False, True): "use_cache off",
}


@pytest.mark.parametrize(("masked", "cached"), CALLED)
def test_packs_are_their_documents_alone(
    masked: bool, cached: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made = model(cached)
    compiled = hspmd.compile(made, packs(masked), strategy=FORM)
    told = f"the model is called with {CALLED[masked, cached]}: the batch has position_ids, which tell"
    assert caplog.text.count("the model is called") == caplog.text.count(told) == 1
    program = compiled.artifact.program
    assert reads_documents(program)
    assert loss_of(program, made) == pytest.approx(alone(made), rel=1e-10)
    compiled.verify(values=True, batch=packs(masked))
    assert made.config.use_cache is cached, "the model stays as it is"
    if not masked:
        return
    eager = eager_model(lambda: model(), whole_state(made), True)
    assert eager_step(eager, packs(), True).loss != pytest.approx(alone(made), rel=1e-4), "hidden by the mask"


def test_rows_of_any_length_beside_a_mask_of_ones() -> None:
    compiled = hspmd.compile(model(cached=True), packs(), strategy=PACKED)
    compiled.verify(values=True)
    assert compiled.artifact.program.left_out.keys() == {"attention_mask"}


def test_a_mask_that_leaves_out_a_token_is_refused_when_it_comes(tmp_path: Path) -> None:
    compiled = hspmd.compile(model(), packs(), strategy=FORM)
    compiled.save(tmp_path / "a")
    program = load(tmp_path / "a").program
    assert program.left_out == {"attention_mask": ((3, 9), "int64")}
    shape = BatchShape.of(program)
    shape.check(packs())
    shape.check(packs(masked=False))
    batch = packs()
    batch["attention_mask"][1, 7:] = 0
    with pytest.raises(RunError) as caught:
        shape.check(batch)
    told = str(caught.value)
    assert told.splitlines()[:2] == [
        "RunError: a mask leaves out tokens, and the program was compiled without it",
        "  attention_mask leaves out 2 of 27 tokens",
    ]
    assert "compile with an example whose mask leaves out a token" in told
    with pytest.raises(RunError, match="a batch doesn't fit the program"):
        shape.check({**packs(), "attention_mask": torch.ones(3, 8, dtype=torch.int64)})


def test_a_mask_that_the_example_uses_is_applied(caplog: pytest.LogCaptureFixture) -> None:
    batch = packs()
    batch["attention_mask"][1, 7:] = 0
    program = hspmd.compile(model(), batch, strategy=FORM).artifact.program
    assert "attention_mask" in program.inputs and not program.left_out and not reads_documents(program)
    assert "the model is called" not in caplog.text


def test_attention_that_is_written_out_keeps_the_mask_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        program = hspmd.compile(model(attention="eager"), packs(), strategy=FORM).artifact.program
    assert "attention_mask" in program.inputs
    assert "attention_mask is applied as the model does it: documents of a row see each other" in caplog.text


class NeedsMask(nn.Module):
    """It can't be called without."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, attention_mask: Tensor, **batch: Tensor) -> Tensor:
        return self.inner(attention_mask=attention_mask, **batch).loss


def test_a_mask_that_the_model_needs_stays() -> None:
    program = hspmd.compile(NeedsMask(), packs(), strategy=FORM).artifact.program
    assert "attention_mask" in program.inputs and not program.left_out


def of_factory(how: str) -> Callable[[], tuple[nn.Module, Batch]]:
    """A factory, whose tensors have no numbers while it is recorded. how: what makes the mask."""

    def build() -> tuple[nn.Module, Batch]:
        made, shape = model(cached=True), (3, 9)
        ids = torch.randint(VOCAB, shape)
        positions = (torch.arange(9) % 4).repeat(3, 1)
        ones = torch.ones(shape, dtype=torch.int64)
        masks = {
            "ones": ones,
            "ones like random ids": torch.ones_like(ids),
            "a zero": ones.index_fill(1, torch.tensor([8]), 0),
            "of a generator": torch.randint(1, 2, shape, generator=torch.Generator().manual_seed(0)),
        }
        batch = {"input_ids": ids, "labels": ids, "shift_labels": ids, "position_ids": positions}
        return made, {**batch, "attention_mask": masks[how]}

    return build


@pytest.mark.parametrize("how", ["ones", "ones like random ids", "of a generator"])
def test_the_mask_of_a_factory_is_left_out(how: str, caplog: pytest.LogCaptureFixture) -> None:
    before = torch.get_rng_state()
    with caplog.at_level(logging.WARNING):
        compiled = hspmd.compile(of_factory(how), strategy=FORM)
    program = compiled.artifact.program
    assert program.left_out == {"attention_mask": ((3, 9), "int64")} and reads_documents(program)
    assert (how == "of a generator") is (
        "numbers of the example's attention_mask aren't known" in caplog.text
    )
    assert torch.equal(torch.get_rng_state(), before)
    if how != "ones":
        return
    made = model(cached=True)
    batch = packs(masked=False)
    state = {key: value.double() for key, value in whole_state(made).items()}
    found = simulate(widen_program(program), state, [batch]).losses[0]
    assert found == pytest.approx(alone(made), rel=1e-10)


def test_the_mask_of_a_factory_with_a_zero_is_applied() -> None:
    program = hspmd.compile(of_factory("a zero"), strategy=FORM).artifact.program
    assert "attention_mask" in program.inputs and not program.left_out and not reads_documents(program)


def test_rows_of_any_length_beside_the_mask_of_a_factory() -> None:
    compiled = hspmd.compile(of_factory("ones"), strategy=PACKED)
    assert compiled.artifact.program.left_out.keys() == {"attention_mask"}
