"""What all tests share: texts pinned in `tests/expected`, and the reference data beside the checkout."""

from __future__ import annotations

import gc

gc.set_threshold(50_000, 20, 100)
"""Traced models, and torch itself, are large webs of objects: looking for cycles as often as Python does by
itself took a fifth of the time. Before the imports, therefore."""

import random  # noqa: E402
import re  # noqa: E402
import socket  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import ExitStack, suppress  # noqa: E402
from difflib import unified_diff  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

TESTS = Path(__file__).resolve().parent
EXPECTED = TESTS / "expected"
REFERENCE = TESTS.parent.parent / "shared" / "reference"
PORTS = range(20_000, 30_000, 2)
"""Below those that a system gives away by itself. The number behind each is bound while a test uses it."""
COMPUTED = re.compile(r"-?\d+\.\d{6,}(e[-+]\d+)?")
"""Numbers whose last digits are those of one processor's sums."""

settings.register_profile("drawn once", derandomize=True, deadline=None)
settings.register_profile("drawn anew", deadline=None)
settings.load_profile("drawn once")  # `make test-all` draws anew


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-expect",
        action="store_true",
        help="rewrite the texts in tests/expected instead of comparing",
    )


def pytest_collection_finish() -> None:
    """Modules and their tests stay: they are not searched for cycles again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a test draws does not depend on those that ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def expect(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`expect(name, text)`: the text is that of `expected/<name>.txt`; a name may hold a folder.

    Computed numbers count to three digits.
    """
    update = bool(request.config.getoption("--update-expect"))

    def compare(name: str, text: str) -> None:
        path = EXPECTED / f"{name}.txt"
        text = COMPUTED.sub(lambda number: f"{float(number[0]):.3g}", text).rstrip("\n") + "\n"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"tests/expected/{name}.txt is missing; pytest --update-expect writes it:\n{text}")
        pinned = path.read_text(encoding="utf-8")
        diff = unified_diff(
            pinned.splitlines(), text.splitlines(), f"expected/{name}.txt", "now", lineterm=""
        )
        if pinned != text:
            pytest.fail("\n".join(["the text changed; pytest --update-expect takes it over:", *diff]))

    return compare


@pytest.fixture
def own_rules() -> Iterator[None]:
    """Rules that a test registers, or takes away, end with it."""
    from hspmd_compiler.rules.op_rule import OP_RULES
    from hspmd_compiler.rules.rule_book import RULES
    from hspmd_compiler.rules.rules import PULLS

    tables: tuple[dict[str, Any], ...] = RULES, OP_RULES, PULLS
    before = [dict(table) for table in tables]
    yield
    for table, known in zip(tables, before, strict=True):
        table.clear()
        table.update(known)


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port for ranks to meet at, which no other test is given meanwhile, of this or of another run."""
    with ExitStack() as held:
        yield next(port for port in PORTS if _is_ours(port, held))


def _is_ours(port: int, held: ExitStack) -> bool:
    guard = held.enter_context(socket.socket())
    with suppress(OSError), socket.socket() as probe:
        guard.bind(("127.0.0.1", port + 1))
        probe.bind(("127.0.0.1", port))
        return True
    return False


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder of reference data beside the checkout; without it the test is skipped."""
    if not REFERENCE.is_dir():
        pytest.skip("needs the reference data, ../shared/reference beside the checkout, which is absent")
    return REFERENCE
