"""docs/config.md: every field of the run file, from the pydantic models."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from antiphon.learner.config import MAGRPOConfig

HEADER = """# Configuration
"""
COMPARISONS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def table(model: type[BaseModel]) -> str:
    """The fields of one model that are no tables of their own."""
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        if nested_model(field.annotation) is None:
            kind = with_limits(type_text(field.annotation), field.metadata)
            text = cell(field.description or "")
            rows.append(f"| `{name}` | {kind} | {default_text(field)} | {text} |")
    return "\n".join(rows)


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
    names = {int: "integer", float: "number", str: "string", bool: "boolean", Path: "path"}
    if annotation is type(None):
        return '`"none"`'
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def with_limits(text: str, metadata: Sequence[Any]) -> str:
    """A type followed by its bounds."""
    limits = ", ".join(limit_texts(metadata))
    return f"{text} {limits}" if limits else text


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
    return f"{HEADER}\n{table(MAGRPOConfig)}\n"
