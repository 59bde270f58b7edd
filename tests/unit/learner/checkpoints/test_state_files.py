"""State as files: everything comes back bit for bit, and nothing is pickled."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.learner.checkpoints.state_files import LONG_LIST, read_state, write_state


def there_and_back(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    write_state(folder, "part", state)
    return read_state(folder, "part")


def test_a_nested_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state = {
        "steps": 7,
        "none": None,
        "on": True,
        "name": "ümlaut / slash",
        "big": 2**80,
        "inner": {"model.layers.0.weight": [1, "two", 3.0, None], "empty": {}, "list": []},
    }
    assert there_and_back(tmp_path, state) == state
    assert [file.name for file in tmp_path.iterdir()] == ["part.json"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.float32).reshape(2, 3),
        torch.tensor(3.0),
        torch.zeros(0, 4),
        torch.arange(5, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.arange(12).reshape(3, 4).t(),
        torch.arange(12, dtype=torch.float32)[3:7],
    ],
    ids=["matrix", "scalar", "empty", "bfloat16", "bool", "transposed", "part of another"],
)
def test_a_tensor_comes_back_as_it_was(tmp_path: Path, tensor: torch.Tensor) -> None:
    back = there_and_back(tmp_path, {"moments": {"a.b": tensor}})["moments"]["a.b"]
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)


def test_tensors_that_share_memory_are_each_kept(tmp_path: Path) -> None:
    whole = torch.arange(4.0)
    back = there_and_back(tmp_path, {"one": whole, "two": whole, "half": whole[:2]})
    assert [back[name].tolist() for name in ("one", "two", "half")] == [
        [0.0, 1.0, 2.0, 3.0],
        [0.0, 1.0, 2.0, 3.0],
        [0.0, 1.0],
    ]


@settings(max_examples=50)
@given(value=st.floats(width=64))
def test_every_number_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, value: float
) -> None:
    """nan, infinities and the sign of zero included, alone and in a long list."""
    folder = tmp_path_factory.mktemp("state")
    back = there_and_back(folder, {"one": value, "many": [value] * LONG_LIST})
    for number in (back["one"], *back["many"]):
        assert type(number) is float
        assert repr(number) == repr(value)
        assert math.copysign(1, number) == math.copysign(1, value) or math.isnan(value)


@pytest.mark.parametrize(
    "values",
    [
        [2**62] * LONG_LIST,
        [2**63] * LONG_LIST,
        [1.5] * (LONG_LIST - 1),
        [*range(LONG_LIST), 0.5],
        [True] * LONG_LIST,
        ["a"] * LONG_LIST,
    ],
    ids=["integers", "beyond 64 bits", "short", "mixed", "booleans", "text"],
)
def test_a_long_list_comes_back_with_its_types(tmp_path: Path, values: list[Any]) -> None:
    back = there_and_back(tmp_path, {"values": values, "again": tuple(values)})
    assert back == {"values": values, "again": values}
    assert [type(v) for v in back["values"]] == [type(v) for v in values]


def test_long_lists_of_numbers_are_not_written_as_text(tmp_path: Path) -> None:
    write_state(tmp_path, "buffer", {"tokens": list(range(1000))})
    assert len((tmp_path / "buffer.json").read_text()) < 100
    assert (tmp_path / "buffer.safetensors").is_file()


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ({"a": {"b": object()}}, r"part/a/b: got object"),
        ({"a": [1, {2}]}, r"part/a/1: got set"),
        ({"a": {1: "x"}}, r"part/a: got the key 1"),
        ({"a": {"$tensor": "x"}}, r"\$tensor"),
        ({"a": b"bytes"}, "got bytes"),
    ],
)
def test_what_is_no_plain_value_is_refused_with_its_place(
    tmp_path: Path, state: dict[str, Any], named: str
) -> None:
    with pytest.raises(TypeError, match=named):
        write_state(tmp_path, "part", state)


def test_the_text_is_plain_json(tmp_path: Path) -> None:
    write_state(tmp_path, "part", {"a": math.inf, "t": torch.zeros(2)})

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    json.loads((tmp_path / "part.json").read_text(), parse_constant=refuse)
