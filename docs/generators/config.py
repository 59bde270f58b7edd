"""docs/config.md: every field of the run file, from the pydantic models."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from antiphon.learner.config.run_file import RunConfig

HEADER = """# Configuration

Generated from the settings' models by `make docs`; do not edit.

A run is a TOML file (`antiphon train run.toml`); [`examples/`](../examples/) has some. A setting
`a.b` can also come from the environment (`ANTIPHON_A__B=value`) or from the command line
(`--set a.b=value`); the command line wins over the environment, and that over the file. Entries of
lists go by number: `--set agents.0.model=…`. An unknown key is refused with the nearest known one.
Where TOML has no value, the word `"none"` turns a setting off.

In Python, `[magrpo]` is `MAGRPOConfig(…)`, with the same names.
`antiphon train run.toml --dry-run` shows what a run comes to.
"""

COMPARISONS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def table(model: type[BaseModel]) -> str:
    """The fields of one model."""
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    # A model's own fields come before those that it inherits.
    fields = sorted(model.model_fields.items(), key=lambda item: item[0] not in own_fields(model))
    for name, field in fields:
        kind = with_limits(type_text(field.annotation), field.metadata)
        text = cell(field.description or "")
        rows.append(f"| `{name}` | {kind} | {default_text(field)} | {text} |")
    return "\n".join(rows)


def own_fields(model: type[BaseModel]) -> Mapping[str, Any]:
    """What the model's own class body annotates."""
    return inspect.get_annotations(model)


def nested_model(annotation: Any) -> type[BaseModel] | None:
    """The model in `Model`, `Model | None`, `list[Model]` or `tuple[Model, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(nested_model, get_args(annotation))), None)


def type_text(annotation: Any) -> str:
    """What may be written there, in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return with_limits(type_text(arguments[0]), arguments[1:])
    if origin is Literal:
        return " or ".join(f"`{literal(value)}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_text(argument) for argument in arguments))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "table"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"list of {type_text(arguments[0])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{literal(member.value)}`" for member in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    names = {int: "integer", float: "number", str: "string", bool: "boolean", Path: "path"}
    if annotation is type(None):
        return '`"none"`'
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def with_limits(text: str, metadata: Sequence[Any]) -> str:
    """A type followed by its bounds, which are not those of "none"."""
    limits = ", ".join(limit_texts(metadata))
    first, *others = text.split(" or ")
    return " or ".join([f"{first} {limits}", *others]) if limits else text


def limit_texts(metadata: Sequence[Any]) -> Iterator[str]:
    """Bounds such as "≥ 1"."""
    for entry in metadata:
        if isinstance(entry, FieldInfo):
            yield from limit_texts(entry.metadata)
        for name, sign in COMPARISONS.items():
            bound = getattr(entry, name, None)
            if bound is not None:
                yield f"{sign} {bound}"


def default_text(field: FieldInfo) -> str:
    """The default as TOML, or that there is none."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "its defaults"
    return "" if value is PydanticUndefined else f"`{literal(value)}`"


def literal(value: Any) -> str:
    """A value as it is written in TOML."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str | Path):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(literal, value))}]"
    return str(value)


def cell(text: str) -> str:
    """A docstring as one table cell; reST's double backquotes become Markdown's."""
    joined = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"``(.+?)``", r"`\1`", joined)


def page() -> str:
    """The page as Markdown."""
    parts = [HEADER]
    shared: list[type[BaseModel]] = []
    for name, field in RunConfig.model_fields.items():
        model = nested_model(field.annotation)
        assert model is not None, name
        title = f"[[{name}]]" if get_origin(field.annotation) is tuple else f"[{name}]"
        parts.append(f"## {title}\n\n{cell(field.description or '')}\n\n{table(model)}\n")
        shared += [m for m in nested_models(model) if m not in shared]
    for model in shared:
        summary = cell((model.__doc__ or "").split("\n\n")[0])
        parts.append(f"## {model.__name__}\n\n{summary}\n\n{table(model)}\n")
    return "\n".join(parts)


def nested_models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The models that a model's fields hold, at any depth."""
    for field in model.model_fields.values():
        inner = nested_model(field.annotation)
        if inner is not None:
            yield inner
            yield from nested_models(inner)
