"""What other planners' models were measured at: by whoever ran them on these points or their own trials."""

from __future__ import annotations

from collections.abc import Mapping

PUBLISHED: Mapping[str, tuple[str, ...]] = {
    "GH200, OPT-350": (
        "Sailor, full set of 15: MAPE 8.9 %, worst 16 %, memory 5.9 %",
        "Metis: 12 to 28 % over Sailor's sets, memory 51 to 77 %",
        "FlashFlex: 22 to 75 % over Sailor's sets",
    ),
    "GH200, GPT-Neo-2.7": (
        "Sailor, full set of 12: MAPE 18.5 % (one point 111 %)",
        "Metis: 12 to 28 % over Sailor's sets, memory 51 to 77 %",
        "FlashFlex: 22 to 75 % over Sailor's sets",
    ),
    "three-type cluster, OPT-350": (
        "Sailor, full set of 9: MAPE 10.3 %, worst 27 %",
        "Metis: 12 to 28 % over Sailor's sets, memory 51 to 77 %",
        "FlashFlex: 67 % below what was measured",
    ),
    "AMP, het_cluster": ("AMP: rank correlation 0.39, MAPE 49 %, first choice 1.47 s of 1.28",),
    "AMP, homogeneous": ("AMP: rank correlation 0.94, MAPE 48 %",),
}
