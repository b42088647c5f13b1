"""One launcher of several: it meets the others, follows the first of them, decides when its turn comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....errors import RunError
from ..launcher import Body, ElasticLauncher, ElasticLimits
from .follower import Follower
from .links import Address, LauncherPlace, listen_at, meet
from .mesh import LauncherMesh
from .other_hosts import OtherHosts
from .shared_files import SharedFiles


@dataclass(frozen=True, slots=True)
class ElasticHost:
    """A launcher that knows all others."""

    mesh: LauncherMesh
    files: SharedFiles

    @property
    def addresses(self) -> Sequence[Address]:
        return self.mesh.place.addresses

    @property
    def own_devices(self) -> tuple[int, ...]:
        """Of this host."""
        return self.mesh.place.devices


def meet_hosts(
    place: LauncherPlace, files: SharedFiles, devices: Sequence[int], silent_s: float, timeout_s: float
) -> ElasticHost:
    """Meet all launchers, which have these devices between them."""
    listener = listen_at(place.addresses[place.number])
    try:
        links, hellos = meet(place, listener, timeout_s)
        absent = sorted(set(devices) - {device for each in hellos.values() for device in each.devices})
        if absent:
            raise RunError(
                "no launcher has these devices",
                details=[(f"rank {devices.index(each)}", f"device {each}") for each in absent],
                rule="each rank is one host's",
                fix="start them with --ranks of one of the hosts",
            )
    except BaseException:
        listener.close()
        raise
    shares = {number: each.devices for number, each in hellos.items()}
    return ElasticHost(LauncherMesh(place, listener, links, shares, silent_s), files)


def run_on_hosts(
    host: ElasticHost, body: Body, limits: ElasticLimits, decider: Callable[[OtherHosts], ElasticLauncher]
) -> None:
    """Until the run is over. body: of a rank. decider: makes the launcher that decides for all hosts."""
    inherited = None
    if host.mesh.own != min(host.mesh.members):
        inherited = Follower(host.mesh, host.files, body, limits.silent_s, limits.start_s).follow()
        if inherited is None:
            return
    decider(OtherHosts(host.mesh, host.files)).run(inherited)
