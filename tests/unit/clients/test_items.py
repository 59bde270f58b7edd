"""U9: a dataset item arrives equal, or is refused at start naming the column."""

import datetime
import decimal
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.clients.items import decode_item, encode_item
from antiphon.clients.types import FieldError

_scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
_texts = st.text(st.characters(exclude_categories=["Cs"]))
_values = st.recursive(
    _scalars | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=12,
)


def _typed(value: Any) -> Any:
    """The value with its types, so that 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return {key: _typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_typed(inner) for inner in value]
    if isinstance(value, float):
        return (float, value.hex())
    return (type(value), value)


@given(st.dictionaries(_texts, _values, max_size=4))
def test_every_json_item_arrives_equal(item: dict[str, Any]) -> None:
    """U9: nested values, None, big ints, floats to the last bit."""
    assert _typed(decode_item(encode_item(item))) == _typed(item)


def test_big_integers_arrive_equal() -> None:
    """U9: integers far beyond 64 bits."""
    item = {"n": 10**3000 + 7, "m": -(2**64)}
    assert decode_item(encode_item(item)) == item


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("when", datetime.date(2024, 2, 29)),
        ("when", datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)),
        ("raw", b"bytes"),
        ("score", math.nan),
        ("score", math.inf),
        ("price", decimal.Decimal("1.5")),
        ("pair", (1, 2)),
        ("tags", {1, 2}),
        pytest.param("huge", 10**5000, id="huge"),
        ("text", "a\ud800"),
        ("text", "\ud83d\ude00"),
        ("by_year", {2024: 1}),
        ("by_\ud800", {"\ud800": 1}),
        ("object", object()),
    ],
)
def test_what_would_not_arrive_equal_is_refused_naming_the_column(column: str, value: Any) -> None:
    """U9: dates, bytes, NaN and their kind, at the top and deep inside."""
    column = column.replace("\ud800", "x")
    with pytest.raises(FieldError) as refusal:
        encode_item({"fine": 1, column: value})
    assert refusal.value.field.startswith(f"item.{column}")
    with pytest.raises(FieldError) as deep:
        encode_item({"rows": [0, {column: value}]})
    assert deep.value.field.startswith(f"item.rows[1].{column}")


def test_an_endless_item_is_refused() -> None:
    """U9: an item that contains itself."""
    item: dict[str, Any] = {}
    item["self"] = item
    with pytest.raises(FieldError, match="levels"):
        encode_item(item)


@pytest.mark.parametrize(
    "data",
    [b"", b"nonsense", b"[]", b"null", b'{"a": Infinity}', b"\xff\xfe", b'{"a":' * 100_000],
)
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(FieldError, match="item_json"):
        decode_item(data)


def test_an_item_is_plain_json_in_utf_8_for_other_languages() -> None:
    data = encode_item({"é": [1, None, "🏙"]})
    assert data == '{"é":[1,null,"🏙"]}'.encode()
    assert json.loads(data) == {"é": [1, None, "🏙"]}
