"""Initialisation as values: the model's own initialiser calls, for replay without its source. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..base.codec import Json, decode, encode
from ..errors import ArtifactError

FILE = "init.json"

RESEED = "reseed"
RESTORE = "restore"
CONSTANT = "constant"
TRUNC_NORMAL = "nn.init.trunc_normal_"
WORDS = (RESEED, RESTORE, CONSTANT, TRUNC_NORMAL)

VALUE = "value"
DTYPE = "dtype"
FLOAT = "float"
MEMORY_FORMAT = "memory_format"

_RANDOM = """
    normal_ uniform_ log_normal_ exponential_ cauchy_ geometric_ bernoulli_ bernoulli random_ normal
    randn rand randint randperm randn_like rand_like randint_like multinomial poisson
"""
_CREATION = """
    empty empty_strided empty_like new_empty new_empty_strided zeros zeros_like new_zeros ones ones_like
    new_ones full full_like new_full arange linspace logspace eye scalar_tensor tril_indices
    triu_indices lift_fresh lift_fresh_copy complex polar
"""
_VIEWS = """
    as_strided view reshape clone contiguous _to_copy copy_ copy t transpose permute expand unsqueeze
    squeeze select slice cat stack split unbind repeat flip roll diag diag_embed tril triu tril_ triu_
    index index_put_ index_put index_select index_fill_ masked_fill masked_fill_ scatter scatter_ gather
    where narrow constant_pad_nd select_scatter slice_scatter meshgrid diagonal unfold repeat_interleave
    _reshape_alias alias detach _unsafe_view split_with_sizes movedim flatten view_as_real
    view_as_complex fill_diagonal_ diagonal_copy as_strided_copy view_copy expand_copy permute_copy
    transpose_copy slice_copy select_copy
"""
_POINTWISE = """
    fill_ fill zero_ zero add add_ sub sub_ rsub mul mul_ div div_ neg neg_ reciprocal reciprocal_ pow
    pow_ exp exp_ exp2 log log_ log2 log1p expm1 sqrt sqrt_ rsqrt rsqrt_ erf erf_ erfinv erfinv_ clamp
    clamp_ clamp_min clamp_min_ clamp_max clamp_max_ abs abs_ sign sign_ sgn sin sin_ cos cos_ tan tanh
    tanh_ sigmoid sigmoid_ floor floor_ ceil round round_ trunc remainder fmod floor_divide eq ne lt le
    gt ge logical_not logical_and logical_or bitwise_and bitwise_or bitwise_not maximum minimum lerp
    lerp_ addcmul addcdiv square softplus log_sigmoid nan_to_num isnan isinf logit logit_ atan2
"""
_REDUCTIONS = """
    sum mean prod std var max min amax amin argmax argmin cumsum cumprod norm linalg_vector_norm all any
    sort topk numel mm bmm addmm matmul mv dot outer linalg_qr linalg_svd _linalg_svd linalg_eigh
    _linalg_eigh linalg_inv_ex linalg_cholesky_ex linalg_householder_product geqrf orgqr qr
"""

POINTWISE_NAMES = frozenset(_POINTWISE.split())
ALLOWED_NAMES = frozenset(" ".join((_RANDOM, _CREATION, _VIEWS, _POINTWISE, _REDUCTIONS)).split())


@dataclass(frozen=True, slots=True)
class InitStep:
    """One call. op: `aten.normal_.default`, or one of WORDS; args hold JSON values, `{"value": id}` a tensor.

    RESEED: args (seed,). RESTORE: args (n,): the generator as it was after the n-th random step, 0 the
    start. CONSTANT: args (dtype name, shape, flat values).
    TRUNC_NORMAL: torch's function, whose number of draws depends on what it draws. outs: ids of the
    tensors it makes. random: it draws from the generator. done: names that are final after it. frees: ids
    that nothing reads later.
    """

    op: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object] = field(default_factory=dict)
    outs: tuple[int, ...] = ()
    random: bool = False
    done: tuple[str, ...] = ()
    frees: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class InitProgram:
    """All calls in order; finals: parameter or buffer name -> id of its tensor."""

    finals: Mapping[str, int]
    steps: tuple[InitStep, ...]

    def to_json(self) -> Json:
        """Plain JSON values, one list entry a step."""
        return encode(self)


def from_json(data: object) -> InitProgram:
    """Read and check a program; an operator off the list, or a tensor used before it is made, is an error."""
    program = decode(InitProgram, data, FILE)
    bad = list(_clashes(program))
    if bad:
        raise ArtifactError("the initialisation is damaged", details=bad[:10], fix="compile the model again")
    return program


def _clashes(program: InitProgram) -> Iterator[tuple[str, str]]:
    alive: set[int] = set()
    done: list[str] = []
    draws = 0
    for place, step in enumerate(program.steps):
        if not is_allowed(step.op):
            yield f"step {place}", f"operator {step.op!r} is not allowed in an initialisation"
        missing = sorted(set(values_in((step.args, step.kwargs))) - alive)
        if missing:
            yield f"step {place}", f"{step.op} reads tensors {missing} that do not exist there"
        alive.update(step.outs)
        for name in step.done:
            if program.finals.get(name) not in alive:
                yield f"step {place}", f"{name!r} is final before its tensor exists"
        if step.op == RESTORE and not (isinstance(step.args[0], int) and 0 <= step.args[0] <= draws):
            yield f"step {place}", f"restores a generator state {step.args[0]!r} that was never reached"
        draws += step.random
        done += step.done
        alive.difference_update(step.frees)
    if sorted(done) != sorted(program.finals):
        yield "finals", "not every parameter and buffer becomes final exactly once"


def is_allowed(op: str) -> bool:
    """Whether `op` is one of WORDS or an initialiser operator of the list."""
    parts = op.split(".")
    return op in WORDS or (len(parts) == 3 and parts[0] == "aten" and parts[1] in ALLOWED_NAMES)


def values_in(encoded: object) -> Iterator[int]:
    """Ids of the tensors in encoded arguments, in order."""
    if isinstance(encoded, Mapping):
        found = encoded.get(VALUE)
        if isinstance(found, int) and len(encoded) == 1:
            yield found
        else:
            for item in encoded.values():
                yield from values_in(item)
    elif isinstance(encoded, (list, tuple)):
        for item in encoded:
            yield from values_in(item)
