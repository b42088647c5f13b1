"""One rank of torch's DistributedDataParallel at a pace, started by `hetero_speedup.py`.

Forward and backward of each layer end no earlier than their part of what the rank's pace says, so that DDP
sends its buckets while later ones are computed, as it does unpaced. Prints the seconds of each step as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from hetero_model import batch, build
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass
class LayerPace:
    """Sleeps behind layers. forward_s, backward_s: of the whole pass at least."""

    forward_s: float
    backward_s: float
    start: float = 0.0

    def watch(self, layers: nn.ModuleList) -> None:
        """Each layer is an equal part."""
        for place, layer in enumerate(layers):
            forward = (place + 1) / len(layers) * self.forward_s
            backward = (len(layers) - place) / len(layers) * self.backward_s
            layer.register_forward_hook(lambda *_, least=forward: self.keep(least))
            if place:  # the first one's end is that of the pass
                layer.register_full_backward_hook(lambda *_, least=backward: self.keep(least))

    def begin(self) -> None:
        self.start = time.perf_counter()

    def keep(self, least_s: float) -> None:
        """Not earlier than so long behind the begin."""
        left = self.start + least_s - time.perf_counter()
        if left > 0:
            time.sleep(left)


def main() -> None:
    """Trains, and tells how long each step was."""
    given = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=given["meeting"], rank=given["rank"], world_size=given["ranks"]
    )
    model, _ = build()
    pace = LayerPace(given["forward_s"], given["backward_s"])
    pace.watch(model.layers)
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(trained.parameters(), lr=given["lr"])
    low, high = given["rows"]
    inputs = {name: value[low:high] for name, value in batch(given["samples"]).items()}
    seconds, losses = [], []
    for _ in range(given["steps"]):
        start = time.perf_counter()
        optimizer.zero_grad()
        pace.begin()
        loss = trained(**inputs)
        pace.keep(pace.forward_s)
        pace.begin()
        loss.backward()
        pace.keep(pace.backward_s)
        pace.begin()
        optimizer.step()
        pace.keep(given["update_s"])
        dist.all_reduce(loss := loss.detach() * (high - low) / given["samples"])
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds, "losses": losses}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
