"""E1: four models on a fixed mix of devices, two of eight fast, slow links between them.

    python examples/program_search/heterogeneous.py --plot heterogeneous.svg

Step times as HAP counts: data parallelism, even (DP-EV) and by speed (DP-CP), the original's programs, and
the optimum of its space, with one vector of ratios and with one for each tensor.
"""

from __future__ import annotations

import sys

from step_times import Experiment, main

MIXED = Experiment(
    "E1, heterogeneous: 2 of 8 devices fast, 10.4 Gbps",
    "[fast]*round(n*2/8) + [slow]*round(n*6/8)",
    "het_2of8_fast",
)

if __name__ == "__main__":
    sys.exit(main(MIXED))
