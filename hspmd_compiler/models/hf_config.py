"""A HF model configuration as data: what would fetch or run somebody's code is refused, at any depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..errors import OptionError

IMPLEMENTATIONS: Mapping[str, frozenset[str | None]] = {
    "attn_implementation": frozenset({None, "", "eager", "sdpa", "flex_attention"}),
    "experts_implementation": frozenset({None, "", "eager", "batched_mm", "grouped_mm"}),
}
"""Of these transformers has its own code; any other name is looked for in a hub of kernels."""
INTERNAL = "_internal"
CODE = {
    "auto_map": "names classes that are downloaded with the model",
    "custom_pipelines": "names code that is downloaded with the model",
    "trust_remote_code": "asks for downloaded code to be run",
    "use_kernels": "asks for kernels from a hub",
    "kernel_config": "names kernels from a hub",
    "backbone": "names a model from a hub",
    "use_pretrained_backbone": "asks for weights from a hub",
}
MOST_VALUES, DEEPEST = 100_000, 32

ConfigProblem = tuple[str, str]


def check_is_data(config: Mapping[str, object]) -> None:
    """Raise one OptionError that names every key, sub-configurations' too."""
    bad = list(_problems(config))
    if bad:
        raise OptionError(
            "the model configuration names code that is not transformers' own",
            details=bad,
            rule="a configuration is data: nothing is downloaded or run on its word",
            fix="delete these keys if transformers' own class is meant, or write a factory of your own",
        )


def _problems(config: Mapping[str, object]) -> Iterator[ConfigProblem]:
    left: list[tuple[str, object, int]] = [("", config, 0)]
    seen = 0
    while left:
        place, value, depth = left.pop()
        seen += 1
        if seen > MOST_VALUES or depth > DEEPEST:
            yield place, f"more than {MOST_VALUES:,} values, or nested deeper than {DEEPEST}"
            return
        if isinstance(value, list):
            left += [(f"{place}[{index}]", item, depth + 1) for index, item in enumerate(value)]
        if isinstance(value, Mapping):
            for key, item in value.items():
                inner = f"{place}.{key}" if place else str(key)
                yield from _problem(inner, str(key), item)
                left.append((inner, item, depth + 1))


def _problem(place: str, key: str, value: object) -> Iterator[ConfigProblem]:
    if key in CODE and value not in (None, False, {}, []):
        yield place, f"{str(value)[:60]!r}: {CODE[key]}"
    allowed = IMPLEMENTATIONS.get(key.lstrip("_").removesuffix(INTERNAL))
    for name in _names(value) if allowed is not None else ():
        if not (name is None or isinstance(name, str)) or name not in (allowed or ()):
            known = ", ".join(sorted(text for text in allowed or () if text))
            yield place, f"{str(name)[:60]!r}: one of {known}; others come from a hub"


def _names(value: object) -> list[object]:
    """One implementation for all, or one for each sub-configuration."""
    return list(value.values()) if isinstance(value, Mapping) else [value]
