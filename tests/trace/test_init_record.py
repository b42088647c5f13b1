"""Initialisation recorded under fake tensors and replayed equals the model's own, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hspmd_compiler.errors import ArtifactError, TraceError
from hspmd_compiler.models.builtin_models import builtin_factory
from hspmd_compiler.program import initial
from hspmd_compiler.program.init_program import InitProgram, InitStep, from_json
from hspmd_compiler.program.initial import replay
from hspmd_compiler.trace.init_record import record_factory
from hspmd_compiler.trace.tracer import trace

SEED = 7
Made = tuple[nn.Module, dict[str, torch.Tensor]]
NO_INPUTS: dict[str, torch.Tensor] = {}


def model_of(fill: Callable[[nn.Module], object]) -> Callable[[], Made]:
    """A factory of a module with parameters that `fill` sets."""

    def factory() -> Made:
        module = nn.Module()
        fill(module)
        return module, NO_INPUTS

    return factory


def reseeding(m: nn.Module) -> None:
    m.a = nn.Linear(3, 4)
    torch.manual_seed(3)
    m.b = nn.Linear(3, 4)
    torch.manual_seed(3)
    m.c = nn.Linear(3, 4)
    with torch.random.fork_rng():
        torch.manual_seed(11)
        m.d = nn.Linear(3, 4)
    m.e = nn.Linear(3, 4)


def truncated(m: nn.Module) -> None:
    m.a = nn.Parameter(torch.empty(40, 50))
    nn.init.trunc_normal_(m.a, std=0.02)
    m.b = nn.Parameter(torch.empty(40, 50))
    nn.init.trunc_normal_(m.b, mean=0.5, std=2.0, a=-1.0, b=1.0)
    m.c = nn.Linear(5, 5)


def many_initialisers(m: nn.Module) -> None:
    m.ortho = nn.Parameter(nn.init.orthogonal_(torch.empty(6, 4)))
    m.xavier = nn.Parameter(nn.init.xavier_normal_(torch.empty(6, 4)))
    m.sparse = nn.Parameter(nn.init.sparse_(torch.empty(8, 4), 0.5))
    m.eye = nn.Parameter(nn.init.eye_(torch.empty(3, 5)))
    m.conv = nn.Conv2d(3, 4, 3)
    m.table = nn.Embedding(9, 4, padding_idx=2)
    m.encoder = nn.TransformerEncoderLayer(8, 2, 16)
    m.norm = nn.BatchNorm1d(5)


def odd_ways(m: nn.Module) -> None:
    rates = [rate.item() for rate in torch.linspace(0, 0.3, 4)]
    m.scaled = nn.Parameter(torch.randn(3, 4).t()[1:] * rates[2])
    m.literal = nn.Parameter(torch.tensor([1.0, 2.0, float("inf"), -0.0]))
    m.data = nn.Linear(3, 3)
    m.data.weight.data = torch.eye(3) + torch.rand(3, 3)
    m.half = nn.Linear(4, 4).to(torch.bfloat16)
    torch.rand(17)  # dead, but it advances the generator
    m.part = nn.Parameter(torch.zeros(4, 4))
    with torch.no_grad():
        m.part[1:3, ::2].normal_()
        m.part[0].copy_(m.literal)
    m.register_buffer("mask", torch.tril(torch.ones(4, 4)).bool())
    m.register_buffer("steps", torch.arange(5).float() / 3, persistent=False)
    m.permuted = nn.Parameter(torch.randperm(6).float())


def tied(m: nn.Module) -> None:
    m.a, m.b = nn.Linear(4, 4), nn.Linear(4, 4)
    m.b.weight = m.a.weight
    nn.init.normal_(m.b.weight)


def default_dtype(m: nn.Module) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        m.a = nn.Linear(3, 3)
        m.b = nn.Parameter(torch.full((2,), 0.1))
    finally:
        torch.set_default_dtype(torch.float32)


def replayed(program: InitProgram) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    replay(program, SEED, lambda name, tensor: found.__setitem__(name, tensor.clone()))
    return found


FACTORIES: dict[str, Callable[[], Made]] = {
    **{name: builtin_factory(name, {}) for name in ("llama-tiny", "gpt2-tiny", "mlp")},
    **{
        fill.__name__: model_of(fill)
        for fill in (reseeding, truncated, many_initialisers, odd_ways, tied, default_dtype)
    },
}


@pytest.mark.parametrize("name", list(FACTORIES))
def test_replay_equals_eager(name: str) -> None:
    factory = FACTORIES[name]
    program = from_json(json.loads(json.dumps(record_factory(factory).init.to_json(), allow_nan=False)))
    torch.manual_seed(SEED)
    model, _ = factory()
    wanted = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    found = replayed(program)
    assert found.keys() == wanted.keys()
    same = {n: found[n].dtype == t.dtype and torch.equal(found[n], t) for n, t in wanted.items()}
    assert [name for name, equal in same.items() if not equal] == []


def test_other_seed_gives_other_numbers() -> None:
    program = record_factory(FACTORIES["mlp"]).init
    found: dict[str, torch.Tensor] = {}
    replay(program, SEED + 1, lambda name, tensor: found.__setitem__(name, tensor.clone()))
    assert not torch.equal(found["net.0.weight"], replayed(program)["net.0.weight"])


@pytest.mark.parametrize("name", ["llama-tiny", "gpt2-tiny"])
def test_two_tensors_alive_at_most(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is built first and filled later, so a plain replay would hold all of it at once."""
    peaks: list[int] = []
    own = initial._Replay._step

    def watched(self: initial._Replay, step: InitStep) -> None:
        own(self, step)
        held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in self.tensors.values()}
        peaks.append(sum(held.values()))

    monkeypatch.setattr(initial._Replay, "_step", watched)
    program = record_factory(FACTORIES[name]).init
    sizes: dict[str, int] = {}
    replay(program, SEED, lambda name, t: sizes.__setitem__(name, t.untyped_storage().nbytes()))
    assert max(peaks) <= 2 * max(sizes.values())
    assert max(peaks) < sum(sizes.values()) / 4


def test_generator_is_left_as_it_was() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    replayed(record_factory(FACTORIES["reseeding"]).init)
    assert torch.equal(torch.get_rng_state(), before)


def test_unset_memory_is_zero() -> None:
    program = record_factory(model_of(lambda m: m.register_parameter("w", nn.Parameter(torch.empty(5))))).init
    assert torch.equal(replayed(program)["w"], torch.zeros(5))


def test_recorded_model_traces_without_memory() -> None:
    recorded = record_factory(builtin_factory("llama-7b", {"layers": "1", "seq": "16"}))
    assert sum(p.numel() for p in recorded.model.parameters()) > 4e8
    graph = trace(recorded.model, recorded.example_inputs, batch=3)
    names = [p.name for p in graph.params.values()]
    assert sorted(names) == sorted(recorded.init.finals)


def _looks_at_random(m: nn.Module) -> None:
    m.a = nn.Linear(3, 3)
    if m.a.weight.sum() > 0:
        m.b = nn.Linear(3, 3)


def _own_generator(m: nn.Module) -> None:
    m.a = nn.Parameter(torch.empty(3, 3).normal_(generator=torch.Generator().manual_seed(1)))


def _from_elsewhere(m: nn.Module) -> None:
    m.a = nn.Parameter(_OUTSIDE.clone())


_OUTSIDE = torch.zeros(300, 300)


def _fails(m: nn.Module) -> None:
    m.a = nn.Linear(3, 3).no_such_attribute


def _foreign_operator(m: nn.Module) -> None:
    m.a = nn.Parameter(torch.special.bessel_j0(torch.rand(3)))


@pytest.mark.parametrize(
    ("fill", "words"),
    [
        (_looks_at_random, ["value of a random tensor", "don't call .item()"]),
        (_own_generator, ["generator of its own"]),
        (_from_elsewhere, ["90000 numbers from elsewhere", "--init FILE"]),
        (_fails, ["can't be built", "test_init_record.py:", "no_such_attribute"]),
        (
            _foreign_operator,
            ["aten.special_bessel_j0.default", "is no initialiser operator", "test_init_record"],
        ),
    ],
)
def test_refused(fill: Callable[[nn.Module], None], words: list[str]) -> None:
    with pytest.raises(TraceError) as caught:
        record_factory(model_of(fill))
    assert [word for word in words if word not in str(caught.value)] == []


def test_unused_own_generator_is_no_matter() -> None:
    def fill(m: nn.Module) -> None:
        torch.rand(3, generator=torch.Generator())
        m.a = nn.Linear(3, 3)

    program = record_factory(model_of(fill)).init
    torch.manual_seed(SEED)
    assert torch.equal(replayed(program)["a.weight"], nn.Linear(3, 3).weight)


@pytest.mark.parametrize(
    ("steps", "word"),
    [
        ([InitStep("aten.from_file.default", ("x",), outs=(0,), done=("w",))], "is not allowed"),
        ([InitStep("os.system", ("x",), outs=(0,), done=("w",))], "is not allowed"),
        ([InitStep("aten.add_.Tensor", ({"value": 3}, 1.0))], "reads tensors [3]"),
        ([InitStep("aten.ones.default", ([2],), outs=(0,))], "becomes final exactly once"),
        ([InitStep("restore", (4,))], "never reached"),
    ],
)
def test_damage_is_named(steps: list[InitStep], word: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        from_json(InitProgram({"w": 0}, tuple(steps)).to_json())
    assert word in str(caught.value)


@pytest.mark.parametrize(
    "data", [None, {}, {"steps": [3], "finals": {}}, {"steps": [{"op": 1}], "finals": {}}]
)
def test_not_a_program(data: object) -> None:
    with pytest.raises(ArtifactError):
        from_json(data)


@given(st.lists(st.integers(-40, 40), min_size=1, max_size=2), st.integers(1, 7))
def test_sizes_are_found_without_the_operator(ends: list[int], step: int) -> None:
    low, high = (0, ends[0]) if len(ends) == 1 else ends
    overload, args = ("default", ends) if len(ends) == 1 else ("start_step", [*ends, step])
    bounds = initial.range_bounds(f"aten.arange.{overload}", args, {})
    assert bounds is not None
    assert initial.range_size(*bounds) == len(range(low, high, step if len(ends) == 2 else 1))


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        ("default", (10**12,), {}),
        ("default", (), {"end": 10**12}),
        ("start", (0,), {"end": 10**12}),
        ("start_step", (0, 1), {"step": 1e-12}),
        ("start_step", (), {"start": 0.0, "end": 1.0, "step": 1e-12}),
        ("start_step", (-9e18, 9e18), {"step": 1e-300}),
        ("start_step", (10**12, 0), {"step": -1}),
    ],
)
def test_a_range_that_is_too_large_takes_no_memory(
    op: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """However it says its ends."""
    steps = (InitStep(f"aten.arange.{op}", args, kwargs, outs=(0,), done=("w",)),)
    with pytest.raises(ArtifactError, match="elements"):
        initial.replay(InitProgram({"w": 0}, steps), 0, lambda name, value: None)


@given(st.lists(st.sampled_from([(), (3,), (1,), (2, 1), (2, 3), (4, 1, 1)]), max_size=3))
def test_operands_are_broadcast_as_pytorch_does(shapes: list[tuple[int, ...]]) -> None:
    operands = [torch.zeros(shape) for shape in shapes]
    found = initial.pointwise_size([*operands, 2.0])
    assert found == sum(operands, torch.zeros(())).numel()


def test_a_replay_loads_no_compiler() -> None:
    """It would take seconds and 100 MB on each rank."""
    code = (
        "import sys, torch\n"
        "from hspmd_compiler.program.init_program import InitProgram, InitStep\n"
        "from hspmd_compiler.program.initial import replay\n"
        "steps = (InitStep('aten.arange.default', (8,), {}, (0,)),"
        " InitStep('aten.div.Tensor', ({'value': 0}, 2), {}, (1,), done=('x',)))\n"
        "replay(InitProgram({'x': 1}, steps), 0, lambda name, value: print(name, value.sum()))\n"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "x tensor(14.)\n"
