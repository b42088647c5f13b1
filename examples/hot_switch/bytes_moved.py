"""What the compiled plans move between ranks in a step: parameters out, gradients back."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hspmd_compiler.compiled_bundle import CompiledBundle
from hspmd_compiler.program.switch_plan import SwitchScope
from hspmd_compiler.switching.totals import totals


@dataclass(frozen=True, slots=True)
class Flow:
    """A strategy away from home. out_bytes: of parameters; back_bytes: of gradients; kept: of either."""

    strategy: str
    out_bytes: int
    back_bytes: int
    kept_bytes: int

    def to_json(self) -> dict[str, object]:
        """For scripts."""
        return asdict(self)


def flows_of(bundle: CompiledBundle) -> list[Flow]:
    """Of each strategy but home."""
    assert bundle.home is not None, "compiled with a home"
    found = []
    for name in bundle.artifacts:
        if name != bundle.home:
            out = totals(bundle.plan(bundle.home, name, SwitchScope.PARAMS), bundle.links)
            back = totals(bundle.plan(name, bundle.home, SwitchScope.GRADS), bundle.links)
            moved = [each.intra_node.bytes + each.inter_node.bytes for each in (out, back)]
            found.append(Flow(name, *moved, out.local.bytes + back.local.bytes))
    return found
