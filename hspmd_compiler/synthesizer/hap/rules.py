"""HAP's rules: in which placements each of its operators can run, and how many flops it counts for them.

Numbers of a multiply-add count 3, elementwise ones what HAP gives them; kernel areas and strides of
convolutions and the projections of attention are left out, as HAP leaves them out. All operators but the
embedding can run on whole operands. There is no rule that cuts a contraction of a linear layer, heads or
the vocabulary. An einsum's rules follow from its letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

from .operators import PENDING, WHOLE, HapAlternative, HapRule, cut

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HapSignature:
    """What a rule depends on. details: dims, or the equation, that a call names."""

    kind: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    details: tuple[int | str, ...] = ()

    @property
    def elements(self) -> int:
        """Of the first operand."""
        return prod(self.inputs[0])

    @property
    def dims(self) -> range:
        """Of the first operand."""
        return range(len(self.inputs[0]))


@cache
def rule_of(signature: HapSignature) -> HapRule:
    """The rule of an operator; RULES has its kind."""
    kind = RULES[signature.kind]
    found = list(kind.alternatives(signature))
    if kind.runs_whole:
        whole = HapAlternative((WHOLE,) * len(signature.inputs), (WHOLE,) * len(signature.outputs), False)
        found.insert(0, whole)
    return HapRule(tuple(found), kind.flops(signature), kind.exchangeable)


def along(signature: HapSignature, dims: Iterable[int]) -> Iterator[HapAlternative]:
    """The first operand and the result cut along the same dim, the other operands whole."""
    rest = (WHOLE,) * (len(signature.inputs) - 1)
    return (HapAlternative((cut(dim), *rest), (cut(dim),), True) for dim in dims)


def linear(signature: HapSignature) -> Iterator[HapAlternative]:
    last = len(signature.inputs[0]) - 1
    yield from along(signature, range(last))
    yield HapAlternative((WHOLE, *(cut(0) for _ in signature.inputs[1:])), (cut(last),), True)


def convolution(signature: HapSignature) -> Iterator[HapAlternative]:
    yield from along(signature, range(1))
    yield HapAlternative((WHOLE, *(cut(0) for _ in signature.inputs[1:])), (cut(1),), True)


def elementwise(signature: HapSignature) -> Iterator[HapAlternative]:
    return along(signature, signature.dims)


def scaled(signature: HapSignature) -> Iterator[HapAlternative]:
    yield from elementwise(signature)
    yield HapAlternative((PENDING,), (PENDING,), False)


def added(signature: HapSignature) -> Iterator[HapAlternative]:
    for dim in range(len(signature.outputs[0])):
        yield HapAlternative((cut(dim), cut(dim)), (cut(dim),), True)
    yield HapAlternative((PENDING, PENDING), (PENDING,), False)


def multiplied(signature: HapSignature) -> Iterator[HapAlternative]:
    for dim in signature.dims:
        yield HapAlternative((cut(dim), cut(dim)), (cut(dim),), True)
    yield HapAlternative((PENDING, WHOLE), (PENDING,), False)
    yield HapAlternative((WHOLE, PENDING), (PENDING,), False)


def summed(signature: HapSignature) -> Iterator[HapAlternative]:
    for dim in signature.dims:
        yield HapAlternative((cut(dim),), (PENDING,), True)
    yield HapAlternative((PENDING,), (PENDING,), False)


def pooled(signature: HapSignature) -> Iterator[HapAlternative]:
    return along(signature, range(2))


def pooled_to_size(signature: HapSignature) -> Iterator[HapAlternative]:
    return along(signature, range(1))


def flattened(signature: HapSignature) -> Iterator[HapAlternative]:
    """details: the first dim that is flattened."""
    return along(signature, range(int(signature.details[0])))


def transposed(signature: HapSignature) -> Iterator[HapAlternative]:
    """details: the two dims."""
    one, other = (int(dim) for dim in signature.details)
    swapped = {one: other, other: one}
    for dim in signature.dims:
        yield HapAlternative((cut(dim),), (cut(swapped.get(dim, dim)),), True)
    yield HapAlternative((PENDING,), (PENDING,), False)


def but_last(signature: HapSignature) -> Iterator[HapAlternative]:
    """details: how many of the last dims are normalised."""
    return along(signature, range(len(signature.inputs[0]) - int(signature.details[0])))


def but_named(signature: HapSignature) -> Iterator[HapAlternative]:
    """details: the dim of the softmax."""
    return along(signature, (dim for dim in signature.dims if dim != signature.details[0]))


def likelihood(signature: HapSignature) -> Iterator[HapAlternative]:
    yield HapAlternative((cut(0), cut(0)), (PENDING,), True)
    for dim in range(len(signature.inputs[0]) - 2):
        yield HapAlternative((cut(dim + 2), cut(dim + 1)), (PENDING,), True)


def embedding(signature: HapSignature) -> Iterator[HapAlternative]:
    """Columns of the table: HAP counts the ids, which are whole."""
    dims = len(signature.inputs[0])
    yield from along(signature, signature.dims)
    yield HapAlternative((WHOLE, cut(1)), (cut(dims),), False)


def attention(signature: HapSignature) -> Iterator[HapAlternative]:
    """Sequence first: the batch is dim 1."""
    rest = (WHOLE,) * (len(signature.inputs) - 1)
    yield HapAlternative((cut(1), *rest), (cut(1),), True)


def append_token(signature: HapSignature) -> Iterator[HapAlternative]:
    yield HapAlternative((cut(0), WHOLE), (cut(0),), True)
    yield HapAlternative((cut(2), cut(2)), (cut(2),), True)


def take_token(signature: HapSignature) -> Iterator[HapAlternative]:
    yield HapAlternative((cut(0),), (cut(0),), True)
    yield HapAlternative((cut(2),), (cut(1),), True)


def region(signature: HapSignature) -> Iterator[HapAlternative]:
    """A user's function, whose activations are cut along the batch. details: which operands are those."""
    if not signature.details:
        return
    needs = tuple(cut(0) if index in signature.details else WHOLE for index in range(len(signature.inputs)))
    yield HapAlternative(needs, (cut(0),) * len(signature.outputs), True)


def einsum(signature: HapSignature) -> Iterator[HapAlternative]:
    """details: the equation. A letter that the result lacks is summed."""
    operands, result = str(signature.details[0]).split("->")
    texts = operands.split(",")
    for letter in dict.fromkeys("".join(texts)):
        needs = tuple(cut(text.index(letter)) if letter in text else WHOLE for text in texts)
        yield HapAlternative(needs, (cut(result.index(letter)) if letter in result else PENDING,), True)


def einsum_flops(signature: HapSignature) -> int:
    texts = str(signature.details[0]).split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for text, shape in zip(texts, signature.inputs, strict=True):
        sizes.update(zip(text, shape, strict=True))
    return 3 * prod(sizes.values())


def attention_flops(signature: HapSignature) -> int:
    tokens, batch, width = signature.inputs[0]
    return 6 * tokens * batch * width * tokens + 5 * tokens * tokens * batch


def token_flops(signature: HapSignature) -> int:
    batch, _, width = signature.inputs[0]
    return batch * width


def region_flops(signature: HapSignature) -> int:
    """10 for each element of the first activation, or of the first operand."""
    first = int(signature.details[0]) if signature.details else 0
    return 10 * prod(signature.inputs[first])


def per_element(count: int) -> Callable[[HapSignature], int]:
    """So many for each element of the first operand."""
    return lambda signature: count * signature.elements


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """exchangeable: HAP may communicate the results; of cheap ones it does so one operator earlier."""

    alternatives: Callable[[HapSignature], Iterator[HapAlternative]]
    flops: Callable[[HapSignature], int]
    exchangeable: bool = True
    runs_whole: bool = True


RULES: Mapping[str, OperatorKind] = {
    "linear": OperatorKind(linear, lambda s: 3 * s.elements * s.outputs[0][-1]),
    "conv2d": OperatorKind(convolution, lambda s: 3 * s.elements * s.outputs[0][1]),
    "relu": OperatorKind(elementwise, per_element(3), exchangeable=False),
    "sigmoid": OperatorKind(elementwise, per_element(3), exchangeable=False),
    "dropout": OperatorKind(elementwise, per_element(3), exchangeable=False),
    "add": OperatorKind(added, lambda s: prod(s.outputs[0])),
    "scale": OperatorKind(scaled, per_element(1)),
    "mul": OperatorKind(multiplied, per_element(1)),
    "sum": OperatorKind(summed, per_element(1), exchangeable=False),
    "transpose": OperatorKind(transposed, per_element(1), exchangeable=False),
    "flatten": OperatorKind(flattened, per_element(1)),
    "layer_norm": OperatorKind(but_last, per_element(10)),
    "log_softmax": OperatorKind(but_named, per_element(15), exchangeable=False),
    "nll_loss": OperatorKind(likelihood, per_element(1), exchangeable=False),
    "max_pool2d": OperatorKind(pooled, per_element(3)),
    "adaptive_avg_pool2d": OperatorKind(pooled_to_size, per_element(3)),
    "embedding": OperatorKind(embedding, per_element(1), runs_whole=False),
    "attention": OperatorKind(attention, attention_flops),
    "append token": OperatorKind(append_token, token_flops),
    "take token": OperatorKind(take_token, token_flops),
    "region": OperatorKind(region, region_flops),
    "einsum": OperatorKind(einsum, einsum_flops),
}
"""HAP's operators, by the kind that a call is read as."""
