"""Settings from a TOML file, the environment and the command line, checked as one model."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from antiphon.clients.types import FieldError

Model = TypeVar("Model", bound=BaseModel)

# Kubernetes gives every pod variables like these for each Service: ANTIPHON_REWARD_SERVICE_HOST.
_SERVICE_LINK = re.compile(r"_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)$")


def load_settings(
    model: type[Model],
    *,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    prefix: str = "ANTIPHON_",
) -> Model:
    """Reads settings; what comes later wins: file, environment, overrides.

    Args:
        model: What they must be.
        file: TOML, or None.
        overrides: Each "a.b=value", as in ``--set reward.timeout=30``. The value is TOML where it
            can be read as such, else a string. List entries go by number: "agents.0.model=x".
        environ: Where ``ANTIPHON_A__B=value`` is the same as "a.b=value"; None for none.
        prefix: What variables must begin with.

    The word "none" stands for None wherever a setting may have that.

    Raises:
        FieldError: An unknown key (naming the nearest known one) or a value that does not fit.
    """
    tree: dict[str, Any] = {}
    if file is not None:
        tree = _read_toml(file)
    for name, value in sorted((environ or {}).items()):
        if not name.startswith(prefix) or name == prefix:
            continue
        path = name.removeprefix(prefix).lower().split("__")
        if path[0] not in _keys(model) and _SERVICE_LINK.search(name):
            continue
        if path[0] not in _keys(model):
            raise FieldError(name, "an unknown variable", _variable_meant(model, prefix, path))
        _put(tree, path, _value(value), name)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise FieldError("--set", repr(override), "key=value, for example --set seed=3")
        _put(tree, key.strip().split("."), _value(value), f"--set {key.strip()}")
    check_unknown(model, tree)
    try:
        return model.model_validate(_without_words(model, tree))
    except ValidationError as error:
        raise _field_error(error) from error


def asked_for(
    key: str,
    *,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    prefix: str = "ANTIPHON_",
) -> Any:
    """What is asked for as "a.b", whatever else is wrong with the settings; None where nothing is.

    Args:
        key: The setting.
        file: As of `load_settings`, like the others.
        overrides: What wins over the environment.
        environ: What wins over the file.
        prefix: What variables begin with.
    """
    for override in reversed(overrides):
        name, equals, value = override.partition("=")
        if equals and name.strip() == key:
            return _value(value)
    for variable, value in (environ or {}).items():
        if variable.lower() == prefix.lower() + key.replace(".", "__"):
            return _value(value)
    try:
        found: Any = {} if file is None else _read_toml(file)
    except FieldError:
        return None
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def none_word(value: object) -> object:
    """TOML, environment and command line have no null: the word ``none`` stands for it there."""
    return None if isinstance(value, str) and value.strip().lower() in ("none", "null") else value


def check_unknown(model: type[BaseModel], mapping: Mapping[str, Any], field: str = "") -> None:
    """Refuses keys that `model`, or a model inside it, does not know.

    Raises:
        FieldError: Names the first such key, and where it belongs or the nearest known one.
    """
    top = f"{field}." if field else ""
    _check_unknown(model, mapping, field, lambda key: _homes(model, key, top))


def _check_unknown(
    model: type[BaseModel],
    mapping: Mapping[str, Any],
    field: str,
    homes_of: Callable[[str], Iterator[str]],
) -> None:
    keys = _keys(model)
    for key, value in mapping.items():
        path = f"{field}.{key}" if field else str(key)
        if key not in keys:
            meant = _meant(str(key), keys, homes_of(str(key)), path.partition(".")[0])
            raise FieldError(path, "an unknown key", meant)
        for inner in _models(keys[key]):
            for place, entry in _mappings(value, path):
                _check_unknown(inner, entry, place, homes_of)


def _homes(model: type[BaseModel], key: str, place: str) -> Iterator[str]:
    """Where a key of that name belongs, as dotted paths; entry 0 stands for those of a list."""
    keys = _keys(model)
    if key in keys:
        yield f"{place}{key}"
    for name, annotation in keys.items():
        if get_origin(annotation) in (dict, Mapping):
            continue  # Its keys are anybody's guess.
        entry = ".0" if _is_list(annotation) else ""
        for inner in _models(annotation):
            yield from _homes(inner, key, f"{place}{name}{entry}.")


def _is_list(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, UnionType):
        return any(map(_is_list, get_args(annotation)))
    return get_origin(annotation) in (list, tuple, Sequence)


def _without_words(model: type[BaseModel], mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with None for the word "none" where `model`, or one inside it, may have None."""
    keys = _keys(model)
    read: dict[str, Any] = {}
    for key, value in mapping.items():
        if NoneType in get_args(keys[key]):
            value = none_word(value)
        for inner in _models(keys[key]):
            value = _each_mapping(value, partial(_without_words, inner))
        read[key] = value
    return read


def _each_mapping(value: Any, change: Callable[[Mapping[str, Any]], Any]) -> Any:
    if isinstance(value, Mapping):
        return change(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_each_mapping(entry, change) for entry in value]
    return value


def _keys(model: type[BaseModel]) -> dict[str, Any]:
    """Key, by name and by alias, to annotation."""
    keys = {name: info.annotation for name, info in model.model_fields.items()}
    aliases = {i.alias: i.annotation for i in model.model_fields.values() if i.alias}
    return keys | aliases


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The one model that an annotation holds: X, X | None, list[X], dict[str, X]."""
    found = list(_all_models(annotation))
    # With several, which of them a mapping is meant for is pydantic's to say.
    if len(found) == 1:
        yield found[0]


def _all_models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, list, tuple, dict, Sequence, Mapping):
        for part in get_args(annotation):
            yield from _all_models(part)


def _mappings(value: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, Mapping):
        yield path, value
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for index, entry in enumerate(value):
            yield from _mappings(entry, f"{path}.{index}")


def _variable_meant(model: type[BaseModel], prefix: str, path: Sequence[str]) -> str:
    """The variable that an unknown one stands for, in words."""
    key, joined = path[-1], "_".join(path)
    found = [home for home in _homes(model, key, "") if "." in home]
    for section, annotation in _keys(model).items():
        for inner in _models(annotation):
            own = joined.removeprefix(f"{section}_")
            if own != joined and own in _keys(inner) and not _is_list(annotation):
                found = [f"{section}.{own}"]
    if found:
        variables = (f"{prefix}{home.upper().replace('.', '__')}" for home in found[:3])
        return " or ".join(variables)
    return _meant(path[0], _keys(model), iter(()), "")


def _meant(key: str, known: Mapping[str, Any], homes: Iterator[str], section: str) -> str:
    """The known key that a misspelt or misplaced one stands for, in words.

    Where it would belong to several places, those in the section where it stands are meant.
    """
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.85)
    near = near or [name for name in known if name.endswith(f"_{key}")][:1]
    if not near and (found := sorted(homes, key=lambda home: home.count("."))):
        own = [home for home in found if home.startswith(f"{section}.")]
        return " or ".join(map(repr, (own or found)[:3]))
    near = near or difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if near:
        return f"{near[0]!r}, the nearest known key"
    return f"one of {', '.join(sorted(known))}"


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FieldError(str(file), error.strerror or str(error), "a readable TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FieldError(str(file), str(error), "TOML in UTF-8") from error


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def _put(tree: dict[str, Any], path: Sequence[str], value: Any, name: str) -> None:
    """Sets one value deep in `tree`, making tables on the way."""
    place: Any = tree
    for depth, key in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(place, list):
            index = int(key) if key.isdecimal() else -1
            if not 0 <= index < len(place):
                raise FieldError(
                    name, f"entry {key!r} of a list of {len(place)}", "the number of an entry"
                )
            slot: Any = index
        elif isinstance(place, dict):
            slot = key
            if not last:
                place.setdefault(key, {})
        else:
            raise FieldError(name, f"a key inside {'.'.join(path[:depth])}", "a table there")
        if last:
            place[slot] = value
        else:
            place = place[slot]


def _field_error(error: ValidationError) -> FieldError:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"]) or "settings"
    if first["type"] == "missing":
        return FieldError(place, "nothing", "a value; it has no default")
    wanted = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return FieldError(place, repr(first["input"]), wanted)
