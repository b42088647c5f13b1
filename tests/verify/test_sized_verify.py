"""Proofs of programs for micro-batches of any size; a size that was left as a number is caught."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.errors import VerifyError
from hspmd_compiler.program.arguments import leaves, map_leaves
from hspmd_compiler.program.sized.instantiate import as_compiled
from hspmd_compiler.program.sized.sizes import Size
from hspmd_compiler.verify.artifact import verify_artifact

FORM = {
    "pipelines": [
        {"stages": [{"devices": [0], "layers": 2}], "micro_batches": [1]},
        {"stages": [{"devices": [1], "layers": 2}], "micro_batches": [1]},
    ],
}


class Tokens(nn.Module):
    """Two blocks on flattened tokens, so that a view has their number."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        flat = x.reshape(-1, 6)
        for block in self.blocks:
            flat = flat + torch.tanh(block(flat))
        return nn.functional.mse_loss(flat.view(x.shape), y)


def compiled(sizes: dict[str, list[int]]) -> hspmd.CompiledProgram:
    torch.manual_seed(0)
    inputs = {"x": torch.randn(2, 5, 6), "y": torch.randn(2, 5, 6)}
    return hspmd.compile(Tokens(), inputs, strategy={**FORM, "sizes": sizes})


@pytest.mark.parametrize("sizes", [{"tokens": [1, 200]}, {"samples": [1, 64]}])
def test_values_are_equal_at_sizes_that_no_compile_saw(sizes: dict[str, list[int]]) -> None:
    report = compiled(sizes).verify(values=True, rows=True)
    assert report.sizes is not None and report.values is not None and report.rows is not None
    assert len(report.values.steps) == len(report.sizes.values) == 4
    ((unit, ends),) = sizes.items()
    assert report.to_json()["sizes"]["unit"] == unit  # type: ignore[index]
    assert report.sizes.shapes[0] == ("1, 1 | 1" if unit == "tokens" else "1 | 1")
    assert report.sizes.shapes[2] == f"{ends[1]} | none"


def test_a_size_that_was_left_a_number_is_caught() -> None:
    artifact = compiled({"tokens": [1, 200]}).artifact
    program = artifact.program
    assert program.sizes is not None
    probe = program.sizes.probes[0]
    micro, total = probe.pipelines[0][0], probe.total(program.sizes.unit)
    name, shared = next(iter(program.classes.items()))
    segment, row = next(
        (number, at)
        for number, each in enumerate(shared.segments)
        for at, row in enumerate(each.rows)
        if any(type(leaf) is Size for leaf in leaves((row.args, row.kwargs)))
    )

    def fixed(leaf: object) -> object:
        return leaf.at(micro, total) if type(leaf) is Size else leaf

    rows = list(shared.segments[segment].rows)
    rows[row] = replace(rows[row], args=tuple(map_leaves(each, fixed) for each in rows[row].args))
    segments = list(shared.segments)
    segments[segment] = replace(segments[segment], rows=rows)
    wrong = replace(program, classes={**program.classes, name: replace(shared, segments=segments)})
    with pytest.raises(VerifyError):
        verify_artifact(replace(artifact, program=wrong))


@pytest.mark.parametrize(("unit", "high"), [("tokens", 200), ("samples", 64)])
def test_pages_say_at_which_size_their_figures_are(unit: str, high: int) -> None:
    """Kept bytes are told of any size, and of the range's end, as prices are."""
    inputs = {"x": torch.randn(2, 5, 6), "y": torch.randn(2, 5, 6)}
    program = hspmd.compile(Tokens(), inputs, strategy={**FORM, "sizes": {unit: [1, high]}})
    sizes = program.artifact.program.sizes
    assert sizes is not None and sizes.text.startswith(
        f"1 to {high} {unit} a micro-batch; figures are those of "
    )
    facts = dict(next(each for each in program.inspect() if each.key == "artifact").rows)
    assert facts["sizes"] == sizes.text
    assert str(facts["first compile"]).startswith("global batch, inputs, rows and instructions are of that")
    two = {"kind": "cuda A100-SXM4-80GB", "count": 2}
    found = program.estimate({"version": 1, "nodes": [{"address": "here", "devices": [two]}]})
    assert f"micro-batches by pipeline: {high} | {high}" in found.notes
    first = as_compiled(program.artifact.program)
    assert [own.saved for own in first.ranks] == [own.saved for own in program.artifact.program.ranks]
    assert all(all(own.saved) for own in first.ranks)
    kept = next(section for section in program.inspect() if section.key == "kept")
    letter = "T" if unit == "tokens" else "n"
    assert f"*{letter}" in kept.to_text() and f"at {high} {unit}" in kept.to_text()
