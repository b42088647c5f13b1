"""The prices by which a twin's ways of communication are chosen: those of the whole program's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...artifact import paths
from ...artifact.store import Artifact
from ...base.comm_plan import CommKind, GatherForm, Traffic
from ...cluster.form import cluster_from
from ...cost_models.links import ClusterCost
from ...cost_models.steps.figures import cost_of_ranks
from ...strategy.strategy import PipelineSpec, Strategy


def cost_of(artifact: Artifact, strategy: Strategy) -> ClusterCost | None:
    """What the artifact was compiled by; None where it was compiled without a cluster."""
    if artifact.cluster is None:
        return None
    return cost_of_ranks(cluster_from(artifact.cluster, paths.CLUSTER), paths.CLUSTER, strategy.devices)


def machines_of(cost: ClusterCost, strategy: Strategy, item: PipelineSpec) -> tuple[int, ...]:
    """Of each device of a pipeline its machine, numbered as they come: a plan may follow from it."""
    ranks = {device: rank for rank, device in enumerate(strategy.devices)}
    nodes = [cost.slots[ranks[device]].node for stage in item.stages for device in stage.devices]
    numbers = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
    return tuple(numbers[node] for node in nodes)


@dataclass(frozen=True, slots=True, eq=False)
class TwinCost:
    """A CostModel of the twin's ranks. ranks: of the whole program, by the twin's.

    growth: times that an activation of the whole program is larger. By the twin's own small messages
    latencies would decide, and other ways be chosen.
    """

    cost: ClusterCost
    ranks: Mapping[int, int]
    growth: float

    @classmethod
    def of(cls, cost: ClusterCost, whole: Strategy, small: Strategy, growth: float) -> TwinCost:
        """By the devices, which both have."""
        ranks = {device: rank for rank, device in enumerate(whole.devices)}
        return cls(cost, {rank: ranks[device] for rank, device in enumerate(small.devices)}, growth)

    def comm_s(self, traffic: Sequence[Traffic]) -> float:
        """See CostModel."""
        return self.cost.comm_s([self._grown(one) for one in traffic])

    def unequal_forms_s(
        self, kind: CommKind, group: Sequence[int], sizes: Sequence[float]
    ) -> Mapping[GatherForm, float]:
        """See CostModel."""
        ranks = tuple(self.ranks[rank] for rank in group)
        return self.cost.unequal_forms_s(kind, ranks, [size * self.growth for size in sizes])

    def near(self, rank: int) -> frozenset[int] | None:
        """See CostModel."""
        near = self.cost.near(self.ranks[rank])
        return None if near is None else frozenset(one for one, at in self.ranks.items() if at in near)

    def _grown(self, one: Traffic) -> Traffic:
        return replace(
            one,
            ranks=tuple(self.ranks[rank] for rank in one.ranks),
            volumes={
                (self.ranks[sender], self.ranks[receiver]): round(size * self.growth)
                for (sender, receiver), size in one.volumes.items()
            },
            size=round(one.size * self.growth),
        )
