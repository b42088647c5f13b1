"""MODEL as a user writes it (built-in name, HF config, `package.module:factory`) becomes a model."""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import cast

import torch
from torch import nn

from ..base.names.factory_names import attribute, call_of, importable_name, shown_name
from ..base.names.named_import import import_named
from ..base.plain_content import python_literal, text_of
from ..base.source_lines import line_of_error
from ..errors import HspmdError, OptionError, TraceError
from ..trace.batch_form import spelled_batch
from ..trace.state.held_tensors import tables_as_buffers
from .builtin_models import BUILTIN, Made, builtin_factory, is_count
from .hf_config import check_is_data
from .hf_model import ARCHITECTURES, hf_model

Json = dict[str, object]
FORMS = "a built-in name, a path to a HF config.json, or package.module:factory"
DEFAULT_SEQ = 4096
SEQ, PACKED = "seq", "packed"


class SourceKind(Enum):
    """Which of the three forms MODEL has; a factory without a name is known to its own process alone."""

    BUILTIN = "builtin"
    HF_CONFIG = "hf-config"
    FACTORY = "factory"
    NAMELESS = "nameless"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that can be made again. config: content of a HF config.json, else None."""

    kind: SourceKind
    name: str
    args: Mapping[str, str]
    factory: Callable[[], Made]
    config: Json | None = None

    def build(self) -> Made:
        """(model, example inputs), made anew; a failure in the factory shows the user's line."""
        try:
            made: object = self.factory()
        except HspmdError:
            raise
        except (Exception, SystemExit) as error:
            raise TraceError(
                f"the model {self.name} can't be built",
                at=line_of_error(error),
                details=[(type(error).__name__, " ".join(str(error).split())[:300])],
                fix="call the factory in a Python shell to see the whole traceback",
            ) from error
        return _checked(self.name, made)

    def description(self) -> Json:
        """JSON-able; `rebuild` makes the same source of it, a config without its file."""
        described: Json = {"kind": self.kind.value, "name": self.name, "args": dict(self.args)}
        return described if self.config is None else {**described, "config": self.config}


def load_model(spec: str, args: Mapping[str, str] | None = None) -> ModelSource:
    """The source that MODEL names; args are the texts of `--arg key=value`."""
    args = dict(args or {})
    if spec in BUILTIN:
        return ModelSource(SourceKind.BUILTIN, spec, args, builtin_factory(spec, args))
    if spec.endswith(".json") or Path(spec).is_file():
        return _config_source(_read_config(Path(spec)), args)
    if Path(spec).is_dir() and (Path(spec) / "config.json").is_file():
        return _config_source(_read_config(Path(spec) / "config.json"), args)
    if ":" in spec:
        return ModelSource(SourceKind.FACTORY, spec, args, _user_factory(spec, args))
    near = difflib.get_close_matches(spec, BUILTIN, n=1)
    raise OptionError(
        f"unknown model {spec!r}",
        details=[("built-in", ", ".join(BUILTIN))],
        rule=f"a model is {FORMS}",
        fix=f"did you mean {near[0]!r}?" if near else f"for a factory of your own: {spec}:FACTORY",
    )


def source_of_factory(factory: Callable[..., Made]) -> ModelSource:
    """A factory of this process: by its importable name, a partial with the arguments that it gives."""
    called, values = call_of(factory)
    name = importable_name(called)
    args = {key: value if isinstance(value, str) else repr(value) for key, value in values.items()}
    if name is not None and _reads_back(called, values, args):
        return ModelSource(SourceKind.FACTORY, name, args, factory)
    return ModelSource(SourceKind.NAMELESS, shown_name(factory), {}, factory)


def _reads_back(
    factory: Callable[..., object], values: Mapping[str, object], args: Mapping[str, str]
) -> bool:
    """Whether these texts, as `--arg`, are these values again; plain ones are."""
    parameters = inspect.signature(factory).parameters if values else {}
    pairs = ((value, _argument(args[key], parameters.get(key))) for key, value in values.items())
    return all(type(value) is type(again) and repr(value) == repr(again) for value, again in pairs)


def rebuild(description: Mapping[str, object], trust: bool = False) -> ModelSource:
    """The source that `ModelSource.description` described.

    A description is data: a factory of somebody's module is imported only where the user says `trust`.
    """
    kind, name, args = (description.get(key) for key in ("kind", "name", "args"))
    config = description.get("config")
    if not (
        isinstance(kind, str)
        and isinstance(name, str)
        and isinstance(args, dict)
        and all(isinstance(text, str) for text in args.values())
    ):
        raise OptionError(
            "a model's description lacks kind, name or args", details=[("found", repr(description))]
        )
    if kind == SourceKind.HF_CONFIG.value and isinstance(config, dict):
        return _config_source(config, args)
    if kind == SourceKind.BUILTIN.value and name in BUILTIN:
        return ModelSource(SourceKind.BUILTIN, name, args, builtin_factory(name, args))
    if kind == SourceKind.FACTORY.value and ":" in name and trust:
        return ModelSource(SourceKind.FACTORY, name, args, _user_factory(name, args))
    raise OptionError(
        f"the model {name} is not made on a description's word",
        details=[("kind", kind), *((key, str(value)) for key, value in args.items())],
        rule="a description is data: of what it names, only built-in models and HF configs are made unasked",
        fix="name the model yourself",
    )


def _checked(name: str, made: object) -> Made:
    is_pair = isinstance(made, tuple) and len(made) == 2
    model, inputs = cast(tuple[object, object], made) if is_pair else (None, None)
    is_batch = isinstance(inputs, Mapping) and all(isinstance(v, torch.Tensor) for v in inputs.values())
    if isinstance(model, nn.Module) and is_batch:
        return tables_as_buffers(model), dict(cast(Mapping[str, torch.Tensor], inputs))
    shown = tuple(type(part).__name__ for part in made) if isinstance(made, tuple) else type(made).__name__
    first = made[0] if isinstance(made, tuple) and made else made
    raise TraceError(
        f"the factory {name} returned {shown}",
        rule="a factory returns (model, example_inputs): an nn.Module and a dict of tensors",
        fix=f"return model, {spelled_batch(first if isinstance(first, nn.Module) else None)}",
    )


def _read_config(path: Path) -> Json:
    try:
        config = json.loads(text_of(path))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(
            f"can't read the model configuration {path}", details=[("why", str(error))]
        ) from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise OptionError(f"{path} is not a HF model configuration", rule="it is an object with a model_type")
    return config


def _config_source(config: Json, args: Mapping[str, str]) -> ModelSource:
    """Args change fields of the config; `seq` is the length of the example inputs, `packed` 1: documents."""
    changes = {key: _literal(text) for key, text in args.items() if key not in (SEQ, PACKED)}
    check_is_data({**config, **changes})
    fields = {*config, ARCHITECTURES}
    bad = [(key, "is not a field of this configuration") for key in changes if key not in fields]
    seq = args.get(SEQ, str(min(DEFAULT_SEQ, _positions(config))))
    bad += [] if is_count(seq) else [(SEQ, f"{seq!r}: wanted a positive whole number")]
    packed = args.get(PACKED, "0")
    bad += [] if packed in ("0", "1") else [(PACKED, f"{packed!r}: wanted 0 or 1")]
    if bad:
        known = ", ".join([SEQ, PACKED, *sorted(fields)])
        raise OptionError("bad arguments of the model configuration", details=[*bad, ("known", known)])
    name = str(config["model_type"])

    def factory() -> Made:
        return hf_model({**config, **changes}, int(seq), int(packed))

    return ModelSource(SourceKind.HF_CONFIG, name, args, factory, config)


def _positions(config: Json) -> int:
    found = config.get("max_position_embeddings", config.get("n_positions", DEFAULT_SEQ))
    return found if isinstance(found, int) else DEFAULT_SEQ


def _user_factory(spec: str, args: Mapping[str, str]) -> Callable[[], Made]:
    module_name, _, name = spec.partition(":")
    module = _import(module_name, spec)
    factory = attribute(module, name)
    if not callable(factory):
        raise _not_callable(spec, module, name)
    parameters = inspect.signature(factory).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = [key for key, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    bad = [(key, "unknown") for key in args if key not in known and not takes_any]
    bad += [
        (key, "missing")
        for key in known
        if parameters[key].default is inspect.Parameter.empty and key not in args
    ]
    if bad:
        raise OptionError(f"bad arguments of {spec}", details=[*bad, ("known", ", ".join(known) or "none")])
    values = {key: _argument(text, parameters.get(key)) for key, text in args.items()}
    return lambda: factory(**values)


def _not_callable(spec: str, module: object, name: str) -> OptionError:
    names = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
    near = difflib.get_close_matches(name, names, n=1)
    return OptionError(
        f"{spec} is not a callable" if attribute(module, name) is not None else f"there is no {spec}",
        rule=f"a model is {FORMS}",
        fix=f"did you mean {near[0]!r}?" if near else "",
    )


def _import(module_name: str, spec: str) -> object:
    try:
        return import_named(module_name)
    except HspmdError:
        raise
    except (Exception, SystemExit) as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == module_name
        is_file = "/" in module_name or module_name.endswith(".py")
        module = Path(module_name).name.removesuffix(".py") or "own_model"
        raise OptionError(
            f"can't import {module_name!r} of the model {spec}",
            at="" if absent else line_of_error(error),
            details=[(type(error).__name__, " ".join(str(error).split())[:300])],
            rule=f"a model is {FORMS}; the current folder is importable",
            fix=f"name the module, not the file, in its folder: {module}:FACTORY" if is_file else "",
        ) from error


def _argument(text: str, parameter: inspect.Parameter | None) -> object:
    wants_text = parameter is not None and parameter.annotation in (str, "str")
    return text if wants_text else _literal(text)


def _literal(text: str) -> object:
    words = {"true": True, "false": False, "null": None, "none": None}
    return words[text.lower()] if text.lower() in words else python_literal(text)
