"""Strategies of a small model that a bundle can hold: unequal places, ZeRO, idle devices."""

from __future__ import annotations

STRATEGIES: dict[str, dict[str, object]] = {
    "narrow": {
        "pipelines": [{"stages": [{"devices": [0, 1], "layers": 4}], "micro_batches": [2, 2]}],
        "zero": 1,
    },
    "deep": {
        "pipelines": [
            {
                "stages": [{"devices": [1], "layers": 3}, {"devices": [2], "layers": 1}],
                "micro_batches": [1, 1, 2],
            }
        ]
    },
    "wide": {
        "pipelines": [
            {"stages": [{"devices": [0], "layers": 4}], "micro_batches": [3]},
            {"stages": [{"devices": [5], "layers": 4}], "micro_batches": [1]},
        ],
        "zero": 2,
    },
}
