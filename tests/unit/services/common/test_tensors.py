"""A model's weights as wire tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import xxhash
from torch import nn

from antiphon.clients.types import FieldError, TensorDtype
from antiphon.services.common.models import load_model
from antiphon.services.common.tensors import (
    check_names_and_shapes,
    from_bytes,
    tensor_shapes,
    tensor_specs,
    to_bytes,
    wire_tensors,
)

Folders = Callable[..., Path]


def test_tied_tensors_are_named_once_and_untied_ones_twice(tiny_folders: Folders) -> None:
    tied = wire_tensors(load_model(tiny_folders(seed=0, tie=True), dtype=torch.float32))
    untied = wire_tensors(load_model(tiny_folders(seed=0, tie=False), dtype=torch.float32))
    assert set(untied) - set(tied) == {"lm_head.weight"}
    assert "model.embed_tokens.weight" in tied
    assert list(tied) == sorted(tied)


def test_buffers_travel_only_where_the_state_dict_keeps_them() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))
            self.register_buffer("kept", torch.zeros(3))
            self.register_buffer("derived", torch.zeros(3), persistent=False)
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    assert list(wire_tensors(Module())) == ["kept", "weight"]


def test_wire_tensors_are_the_models_own_memory(tiny_folders: Folders) -> None:
    model = load_model(tiny_folders(seed=0), dtype=torch.float32)
    wire_tensors(model)["model.norm.weight"].fill_(7.0)
    assert model.model.norm.weight.tolist() == [7.0] * 16


@pytest.mark.parametrize("dtype", list(TensorDtype))
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4)])
def test_bytes_come_back_as_the_rounded_tensor(dtype: TensorDtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(shape)
    data = to_bytes(tensor, dtype)
    assert data.nbytes == tensor.numel() * dtype.size
    back = from_bytes(bytes(data), dtype, shape)
    assert torch.equal(back.float(), tensor.to(getattr(torch, dtype)).float())
    assert torch.equal(from_bytes(bytearray(data), dtype, shape), back)


def test_bytes_are_row_major_little_endian_whatever_the_strides() -> None:
    tensor = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()
    wanted = "0000803f" + "00004040" + "00000040" + "00008040"
    assert bytes(to_bytes(tensor, TensorDtype.FLOAT32)).hex() == wanted
    assert bytes(to_bytes(torch.tensor(1.0), TensorDtype.BFLOAT16)).hex() == "803f"


def test_a_buffer_of_the_wrong_length_is_refused_with_both_lengths() -> None:
    with pytest.raises(FieldError, match=r"7 bytes.*8 for shape \[2\]"):
        from_bytes(b"1234567", TensorDtype.FLOAT32, (2,))


def test_specs_carry_shape_dtype_and_checksum_of_the_wire_bytes() -> None:
    tensors = {"b": torch.ones(2, 3), "a": torch.tensor(2.0)}
    specs = tensor_specs(tensors, TensorDtype.BFLOAT16)
    assert [(s.name, s.dtype, s.shape, s.nbytes) for s in specs] == [
        ("a", TensorDtype.BFLOAT16, (), 2),
        ("b", TensorDtype.BFLOAT16, (2, 3), 12),
    ]
    assert specs[1].checksum == xxhash.xxh3_128_digest(bytes.fromhex("803f" * 6))


def test_a_set_that_does_not_fit_the_model_is_refused(tiny_folders: Folders) -> None:
    wanted = tensor_shapes(wire_tensors(load_model(tiny_folders(seed=0), dtype=torch.float32)))
    ones = {name: torch.ones(shape) for name, shape in wanted.items()}
    norm = "model.norm.weight"
    cases = {
        "unknown": ({**ones, "model.extra": torch.ones(1)}, "model.extra"),
        "tied alias": ({**ones, "lm_head.weight": torch.ones(1)}, "tied tensors are named once"),
        "missing": ({n: t for n, t in ones.items() if n != norm}, f"missing: {norm}"),
        "shape": ({**ones, norm: torch.ones(17)}, r"\[17\], wanted \[16\]"),
    }
    for tensors, message in cases.values():
        with pytest.raises(FieldError, match=message):
            check_names_and_shapes(wanted, tensor_shapes(tensors).items(), "tensors")


def test_a_tensor_that_is_named_twice_is_refused() -> None:
    shapes = tensor_shapes({"a": torch.ones(2)})
    with pytest.raises(FieldError, match=r"tensors\[1\].name: got 'a' again"):
        check_names_and_shapes(shapes, [("a", (2,)), ("a", (2,))], "tensors")
