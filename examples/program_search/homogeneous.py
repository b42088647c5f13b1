"""E2: four models on equal devices.

    python examples/program_search/homogeneous.py --plot homogeneous.svg

As heterogeneous.py; speeds and bandwidths are those of the released scripts.
"""

from __future__ import annotations

import sys

from step_times import Experiment, main

EQUAL = Experiment("E2, homogeneous: equal devices", "every device_flops=5966645808610", "released")

if __name__ == "__main__":
    sys.exit(main(EQUAL))
