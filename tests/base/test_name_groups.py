"""Names of many layers in one line."""

from __future__ import annotations

from hspmd_compiler.base.name_groups import grouped, shortened


def test_the_same_of_many_layers_is_one_line() -> None:
    missing = [(f"layers.{layer}.{part}.weight", "missing") for layer in range(24) for part in ("up", "down")]
    details = [*missing, ("layers.7.up.bias", "missing"), ("layers.3.up.weight", "shape [2], wanted [3]")]
    assert shortened(details) == [
        ("layers.*.up.weight", "missing (all 24 of them)"),
        ("layers.*.down.weight", "missing (all 24 of them)"),
        ("layers.7.up.bias", "missing"),
        ("layers.3.up.weight", "shape [2], wanted [3]"),
    ]


def test_what_is_left_out_is_counted() -> None:
    details = [(f"part{letter}.0.weight", "missing") for letter in "abcdefgh"] + [
        ("parth.1.weight", "missing")
    ]
    assert shortened(details, shown=6) == [*details[:6], ("...", "3 more")]
    assert list(grouped(details).values())[-1] == ["parth.0.weight", "parth.1.weight"]
