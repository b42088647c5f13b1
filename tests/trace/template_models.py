"""Small models of repeated blocks with the traps that a trace of one block in place of all can fall into."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from hspmd_compiler.ir.comm_marker import comm

WIDTH = 8
DEPTH = 6


class Block(nn.Module):
    """A residual block, scaled by a plain attribute and by an argument."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)
        self.factor = factor

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x)))) * self.factor * scale


class Stack(nn.Module):
    """Blocks between two linear layers; `run` is the parent's loop."""

    def __init__(self, block: Callable[[int], nn.Module] = lambda _: Block()) -> None:
        super().__init__()
        self.first = nn.Linear(4, WIDTH)
        self.blocks = nn.ModuleList(block(place) for place in range(DEPTH))
        self.last = nn.Linear(WIDTH, 3)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.last(self.run(self.first(x))), y)


class OneIsSkipped(Stack):
    """The parent leaves out a block by its place."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for place, block in enumerate(self.blocks):
            x = x if place == 4 else block(x)
        return x


class OneIsScaled(Stack):
    """The parent does one thing more after one block."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for place, block in enumerate(self.blocks):
            x = block(x)
            if place == 4:
                x = x * 2
        return x


class OneWithoutGradient(Stack):
    """The parent runs a block without recording: the same forward, another backward."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for place, block in enumerate(self.blocks):
            with torch.set_grad_enabled(place != 4):
                x = block(x)
        return x


class OneIsDetached(Stack):
    """The gradient stops before one block."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for place, block in enumerate(self.blocks):
            x = block(x.detach() if place == 4 else x)
        return x


class OneWholeNumber(Stack):
    """A literal of another type in one block, which counts as equal in Python."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for place, block in enumerate(self.blocks):
            x = block(x, 1.0 if place == 4 else 1)
        return x


class OneIsMarked(Stack):
    """The parent asks for a layout after one block; eager code does not see it."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for place, block in enumerate(self.blocks):
            x = block(x)
            if place == 4:
                x = comm(x, "[0,1] <S0x2>")
        return x


class PlaceInMath(Block):
    """A literal depends on the block's place, which the block knows."""

    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return super().forward(x) / (self.layer_idx + 1)


class PlaceInTensor(PlaceInMath):
    """The same in a literal tensor."""

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return Block.forward(self, x) * torch.tensor([0.5 * self.layer_idx] * WIDTH)


class DepthInMath(Stack):
    """A literal depends on the number of blocks."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return super().run(x) / len(self.blocks)


class SharedLayer(Stack):
    """One block object in all places, as in ALBERT."""

    def __init__(self) -> None:
        block = Block()
        super().__init__(lambda _: block)


class SharedParameter(Stack):
    """Blocks share a parameter."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.up.weight = self.blocks[0].up.weight


class OneSharedWithHead(Stack):
    """An inner block shares its parameter with the end."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(12, WIDTH)
        self.last.weight = self.blocks[3].down.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.run(self.first(x)), self.last.weight.t()).logsumexp(1).mean()


class UNet(Stack):
    """The second half reads what the first half made, in reverse."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for place, block in enumerate(self.blocks):
            x = block(x + kept.pop() if place >= DEPTH // 2 else x)
            kept.append(x)
        return x


class FirstIsKept(Stack):
    """All blocks read what the first made."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        first = x = self.blocks[0](x)
        for block in list(self.blocks)[1:]:
            x = block(x + first)
        return x


class StackedMean(Stack):
    """The end reads what every block made."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.blocks:
            x = block(x)
            kept.append(x)
        return torch.stack(kept).mean(0)


class AuxiliaryLoss(Stack):
    """Every block gives a term of the loss."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total, x = torch.zeros(()), self.first(x)
        for block in self.blocks:
            x = block(x)
            total = total + x.square().mean()
        return nn.functional.cross_entropy(self.last(x), y) + total


class Pair(Block):
    """Two values in, two out."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return super().forward(y), self.norm(x)


class Carried(Stack):
    """Two values of one shape go from block to block."""

    swapped: int | None = None

    def __init__(self) -> None:
        super().__init__(lambda _: Pair())

    def run(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for place, block in enumerate(self.blocks):
            x, y = block(y, x) if place == self.swapped else block(x, y)
        return x - y


class CarriedSwapped(Carried):
    """The two values change their places before one block."""

    swapped = 3


class Buffered(Block):
    """A block with batch norm: buffers that change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)


class Adapted(Stack):
    """A second list with an entry per block."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH))

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for block, adapter in zip(self.blocks, self.adapters, strict=True):
            x = adapter(block(x))
        return x


class TwoStacks(Stack):
    """Two lists one after the other, of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Sequential(*(Block(0.5) for _ in range(DEPTH + 2)))

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return self.more(super().run(x))


class PerBlockList(Stack):
    """A list of the parent has an entry per block, and two kinds alternate."""

    def __init__(self) -> None:
        super().__init__(lambda place: Block(0.5 if place % 2 else 1.0))
        self.scales = [3.0 if place % 2 else 4.0 for place in range(DEPTH)]

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for place, block in enumerate(self.blocks):
            x = block(x, self.scales[place])
        return x


class Frozen(Stack):
    """The first half learns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)
        for block in self.blocks[: DEPTH // 2]:
            block.requires_grad_(False)


class Overwriting(Block):
    """A block that changes its input."""

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x.mul_(0.5).add_(self.down(self.up(x * 2)))


class Remembers(Stack):
    """The first call makes a cache that later calls read."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: torch.Tensor | None = None

    def run(self, x: torch.Tensor) -> torch.Tensor:
        if self.cache is None:
            self.cache = torch.arange(WIDTH, dtype=x.dtype)
        return super().run(x + self.cache)


class ByNumber(Stack):
    """Blocks are taken by their number, as many as there were."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for number in range(DEPTH):
            x = self.blocks[number](x)
        return x


class ReadsItsDevice(Stack):
    """Does something else on the device on which blocks are compared."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "meta":
            raise RuntimeError("no numbers here")
        return super().run(x)


class Dropping(Block):
    """Drops before and after its last layer; each draw has a number of its own."""

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        inner = nn.functional.dropout(self.up(self.norm(x)).relu(), 0.3)
        return x + nn.functional.dropout(self.down(inner), 0.1, inplace=True)


class LiteralByPlace(Stack):
    """The parent's loop makes a number of the place."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for place, block in enumerate(self.blocks):
            x = block(x) * (place + 1)
        return x


class WidthByPlace(Block):
    """Every other block is wider inside."""

    def __init__(self, place: int) -> None:
        super().__init__()
        wide = 12 + 4 * (place % 2)
        self.up, self.down = nn.Linear(WIDTH, wide), nn.Linear(wide, WIDTH)


class Shifted(Block):
    """A buffer of one shape, with numbers of its own in every block."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.full((WIDTH,), float(place)))

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return super().forward(x + self.shift)


def one_evaluated() -> Stack:
    """Dropout is off in one block."""
    model = Stack(lambda _: Dropping())
    model.blocks[3].eval()
    return model


def one_frozen() -> Stack:
    """One block in the middle learns nothing."""
    model = Stack()
    model.blocks[3].requires_grad_(False)
    return model


def hooked(*scales: float) -> Stack:
    """Hooks change what the first blocks behind block 0 give."""
    model = Stack()
    for block, scale in zip(list(model.blocks)[1:], scales, strict=False):
        block.register_forward_hook(lambda _, given, made, scale=scale: made * scale)
    return model


class Experts(nn.Module):
    """Another class of block: two experts by a gate, over the samples' mask, with dropout."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2, bias=False)
        self.experts = nn.Parameter(torch.ones(2, WIDTH, WIDTH))
        self.moe_index = number

    def forward(self, x: torch.Tensor, scale: float | torch.Tensor = 1.0) -> torch.Tensor:
        shares = self.gate(x * scale).softmax(-1)
        made = torch.einsum("bd,edf->bef", self.norm(x), self.experts).relu()
        return x + nn.functional.dropout(torch.einsum("bef,be->bf", made, shares), 0.2)


class Mixed(Stack):
    """Blocks of a few classes, in the order of letters: A drops, B has experts, C is plain."""

    def __init__(self, order: str) -> None:
        made = {"A": lambda _: Dropping(), "B": Experts, "C": lambda _: Block()}
        super().__init__()
        self.blocks = nn.ModuleList(made[kind](order[:place].count(kind)) for place, kind in enumerate(order))


class MixedMasked(Mixed):
    """All blocks read one buffer of the model's; `tied` makes some share a parameter."""

    def __init__(self, order: str, tied: Callable[[nn.ModuleList], None] = lambda _: None) -> None:
        super().__init__(order)
        self.register_buffer("mask", torch.ones(WIDTH))
        tied(self.blocks)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, self.mask)
        return x


class OneOfAKindIsScaled(Mixed):
    """The parent treats one block of a class in another way, by its place."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for place, block in enumerate(self.blocks):
            x = block(x)
            if place == 3:
                x = x * 2
        return x


class Turned(Pair):
    """As `Pair`, but makes what it gives in another order."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        second = self.norm(x)
        return Block.forward(self, y), second


class CarriedByTwo(Carried):
    """Two values of one shape go from block to block, which are of two kinds."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Pair() if kind == "A" else Turned() for kind in order)


class Biased(Block):
    """Makes a scale of what it gets, or takes the one that it is given, as layers of T5 do a bias."""

    def __init__(self, makes: bool) -> None:
        super().__init__()
        self.bias = nn.Linear(WIDTH, WIDTH) if makes else None

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        bias = self.bias(x).tanh() if self.bias is not None else bias
        return super().forward(x if bias is None else x * bias), bias


class OneGivesToAll(Stack):
    """All blocks behind one read what it made beside its result."""

    def __init__(self, giver: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Biased(place == giver) for place in range(2 * DEPTH))

    def run(self, x: torch.Tensor) -> torch.Tensor:
        bias = None
        for block in self.blocks:
            x, bias = block(x, bias)
        return x


class FrozenUpTo(Stack):
    """The first blocks learn nothing, so that gradients end in the middle."""

    def __init__(self, depth: int, frozen: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.first.requires_grad_(False)
        self.blocks[:frozen].requires_grad_(False)


def share_bias(blocks: nn.ModuleList) -> None:
    blocks[3].norm.weight = blocks[2].norm.weight


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": Stack,
    "two stacks": TwoStacks,
    "a list per block": PerBlockList,
    "batch norm": lambda: Stack(lambda _: Buffered()),
    "in place": lambda: Stack(lambda _: Overwriting()),
    "two values": Carried,
    "frozen half": Frozen,
    "cache": Remembers,
    "dropout": lambda: Stack(lambda _: Dropping()),
    "one is skipped": OneIsSkipped,
    "one is scaled": OneIsScaled,
    "one without gradient": OneWithoutGradient,
    "one is detached": OneIsDetached,
    "one whole number": OneWholeNumber,
    "one is marked": OneIsMarked,
    "place in math": lambda: Stack(PlaceInMath),
    "place in a tensor": lambda: Stack(PlaceInTensor),
    "depth in math": DepthInMath,
    "drop path rates": lambda: Stack(lambda place: Block(1.0 - place / 10)),
    "one layer in all places": SharedLayer,
    "a shared parameter": SharedParameter,
    "shared with the head": OneSharedWithHead,
    "u-net": UNet,
    "the first is kept": FirstIsKept,
    "stack of all": StackedMean,
    "auxiliary loss": AuxiliaryLoss,
    "two values swapped": CarriedSwapped,
    "adapters": Adapted,
    "by number": ByNumber,
    "literal by place": LiteralByPlace,
    "width by place": lambda: Stack(WidthByPlace),
    "buffers of other numbers": lambda: Stack(Shifted),
    "one is evaluated": one_evaluated,
    "one is frozen": one_frozen,
    "one has a hook": lambda: hooked(2.0),
    "two have other hooks": lambda: hooked(2.0, 3.0),
    "reads its device": ReadsItsDevice,
    "the first is given to all": lambda: OneGivesToAll(0),
    "the third is given to all": lambda: OneGivesToAll(2),
    "two classes in turn": lambda: Mixed("ABABABAB"),
    "two of one, one of another": lambda: Mixed("AABAABAAB"),
    "one class after another": lambda: Mixed("AAAABBBB"),
    "other classes at the ends": lambda: Mixed("CABAABABC"),
    "any order": lambda: MixedMasked("ABCCABBACBAB"),
    "a tie across classes": lambda: MixedMasked("ABABAB", share_bias),
    "one of a class is scaled": lambda: OneOfAKindIsScaled("ABABABAB"),
    "two orders of two values": lambda: CarriedByTwo("AAB" * 6),
    "frozen up to a block": lambda: FrozenUpTo(18, 9),
}
