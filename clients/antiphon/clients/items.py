"""Dataset items as JSON: an item arrives equal to what was sent, or is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from antiphon.clients.types import FieldError

MAX_DEPTH = 100
"""Most levels of lists and objects within one item."""

MAX_INTEGER_DIGITS = 4000
"""Most decimal digits of an integer; Python itself refuses to parse above 4300."""

_WANTED = "JSON values only: text, int, finite float, bool, None, lists and objects of those"


def encode_item(item: Mapping[str, Any], field: str = "item") -> bytes:
    """Write a dataset item as a JSON object in UTF-8.

    Raises:
        FieldError: A value would not arrive equal (a date, bytes, a tuple, NaN, a key that is not
            text, …); its path is named, beginning with `field` and the column.

    """
    if not isinstance(item, Mapping):
        raise FieldError(field, type(item).__name__, "a mapping from column names to values")
    plain = dict(item)
    _check(plain, field, depth=0)
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def decode_item(data: bytes, field: str = "item_json") -> dict[str, Any]:
    """Read a JSON object in UTF-8.

    Raises:
        FieldError: It is no JSON object, or holds a number that JSON does not know (NaN, Infinity).

    """
    try:
        value = json.loads(data.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FieldError(field, _short(data), f"a JSON object in UTF-8 ({error})") from error
    if not isinstance(value, dict):
        raise FieldError(field, f"a JSON {type(value).__name__}", "a JSON object")
    return value


def _check(value: object, field: str, depth: int) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        _check_text(value, field)
    elif isinstance(value, int):
        _check_integer(value, field)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise FieldError(field, value, "a finite number, or None")
    elif isinstance(value, dict):
        _check_depth(field, depth)
        for key, inner in value.items():
            if not isinstance(key, str):
                raise FieldError(field, f"the key {key!r}", "keys that are text")
            _check_text(key, field)
            _check(inner, f"{field}.{key}", depth + 1)
    elif isinstance(value, list):
        _check_depth(field, depth)
        for index, inner in enumerate(value):
            _check(inner, f"{field}[{index}]", depth + 1)
    else:
        raise FieldError(field, f"a {type(value).__name__} ({_short(value)})", _advice(value))


def _check_text(value: str, field: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise FieldError(field, ascii(value[:40]), "text without lone surrogates") from error


def _check_integer(value: int, field: str) -> None:
    # An upper bound of the number of digits: writing the number out is what would fail.
    digits = value.bit_length() * 0.30103 + 1
    if digits > MAX_INTEGER_DIGITS:
        raise FieldError(
            field, f"an integer of about {int(digits)} digits", f"at most {MAX_INTEGER_DIGITS}"
        )


def _check_depth(field: str, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise FieldError(field[:80], f"more than {MAX_DEPTH} levels", f"at most {MAX_DEPTH}")


def _advice(value: object) -> str:
    if isinstance(value, tuple):
        return "a list: a tuple would arrive as one"
    if isinstance(value, (bytes, bytearray)):
        return f"{_WANTED}; bytes, for example, as base64 text"
    if hasattr(value, "isoformat"):
        return f"{_WANTED}; a date or time as text, for example by isoformat()"
    return f"{_WANTED}; convert it before training"


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
