"""Changes of a tensor: whatever they are, decoded to the bit; small for what training changes."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from antiphon.clients.types import FieldError, TensorDtype
from antiphon.services.common.changes import (
    BLOCK_ELEMENTS,
    ChangeEncoder,
    Patterns,
    best_exponent,
    blocks,
    decode_change,
    patterns,
)

NUMPY = {TensorDtype.BFLOAT16: np.uint16, TensorDtype.FLOAT32: np.uint32}


def encoded(base: Patterns, new: Patterns, exponent: int, block: int = 7) -> bytes:
    encoder = ChangeEncoder(exponent)
    for start in range(0, len(base), block):
        part = slice(start, start + block)
        moved, after = encoder.add(base[part], new[part])
        assert np.array_equal(moved, np.flatnonzero(base[part] != new[part]))
        assert np.array_equal(after, new[part][moved])
    return encoder.finish()


def applied(data: bytes, base: Patterns) -> Patterns:
    positions, values = decode_change(data, base)
    assert np.all(np.diff(positions) > 0)
    result = base.copy()
    result[positions] = values
    return result


@st.composite
def pairs(draw: Any) -> tuple[Patterns, Patterns]:
    """Any bit patterns, NaN, infinities, zeros and subnormals included, and changes of them."""
    kind = draw(st.sampled_from(list(NUMPY.values())))
    length = draw(st.integers(0, 60))
    base = draw(arrays.arrays(kind, length))
    step = draw(arrays.arrays(kind, length, fill=st.just(kind(0))))
    return base, base + step


@given(pairs(), st.integers(0, 255))
def test_any_change_is_decoded_to_the_bit(pair: tuple[Patterns, Patterns], exponent: int) -> None:
    base, new = pair
    before = base.copy()
    data = encoded(base, new, exponent)
    assert np.array_equal(applied(data, base), new)
    assert np.array_equal(base, before)
    assert (data == b"") == np.array_equal(base, new)


@pytest.mark.parametrize("dtype", list(TensorDtype))
@pytest.mark.parametrize("gap", [0, 1, 254, 255, 256, 510, 100_000])
def test_gaps_of_every_length_between_large_elements_that_change(
    dtype: TensorDtype, gap: int
) -> None:
    base = patterns(
        torch.ones(300_000, dtype=getattr(torch, dtype)).view(torch.uint8).numpy(), dtype
    )
    new = base.copy()
    new[[gap, 2 * gap + 1]] += 1
    data = encoded(base, new, exponent=0, block=BLOCK_ELEMENTS)
    assert np.array_equal(applied(data, base), new)
    assert len(data) < 100


def test_the_layout_is_the_one_that_the_module_names() -> None:
    """By hand: 1.0 is 3f80 (exponent field 127), 2^-14 is 3880 (exponent field 113)."""
    base = np.array([0x3F80, 0x3880, 0xB880, 0x3F80, 0x3F81, 0x3880], np.uint16)
    new = np.array([0x3F80, 0x3881, 0xB880, 0x3F82, 0x3F81, 0x3780], np.uint16)
    raw = zstandard.ZstdDecompressor().decompress(encoded(base, new, exponent=113))
    # Small are 1, 2 and 5, of which 1 and 5 changed: bits 101, and five of filling.
    # Of the large ones 3 changed, with three elements before it.
    # Differences in order of magnitude: 1 (+1), 5 (-256) and 3 (+2): zigzag 2, 511, 4.
    small, gaps, low, high = "a0", "03", "02ff04", "000100"
    assert raw.hex() == "71" + "0100000000000000" + small + gaps + low + high


def test_what_a_step_of_training_changes_takes_few_bits_a_change() -> None:
    """Moved by the learning rate, rounded to bf16: far less than gap and value of each change."""
    torch.manual_seed(0)
    master = torch.randn(1 << 20) * 0.1
    before = master.to(torch.bfloat16)
    after = (before.float() + 1e-6 * torch.randn(1 << 20).sign()).to(torch.bfloat16)
    base, new = (
        patterns(tensor.view(torch.uint8).numpy(), TensorDtype.BFLOAT16)
        for tensor in (before, after)
    )
    exponent = best_exponent(base[::16], new[::16])
    encoder = ChangeEncoder(exponent)
    for block in blocks(len(base)):
        encoder.add(base[block], new[block])
    data = encoder.finish()
    changed = int((base != new).sum())
    assert 500 < changed < len(base) // 100
    assert 8 * len(data) / changed < 8
    assert np.array_equal(applied(data, base), new)


@given(st.binary(max_size=80), st.booleans())
def test_bytes_that_are_no_change_are_refused(noise: bytes, framed: bool) -> None:
    """S17: as an error of the field, whatever they are, or else as a change within the tensor."""
    base = np.arange(50, dtype=np.uint16) << 8
    data = zstandard.ZstdCompressor().compress(noise) if framed else noise
    positions, values = np.empty(0), np.empty(0)
    with contextlib.suppress(FieldError):
        positions, values = decode_change(data, base)
    assert len(positions) == len(values)
    assert all(0 <= position < 50 for position in positions)


def test_a_frame_that_claims_to_hold_more_than_the_tensor_can_change_is_refused() -> None:
    data = zstandard.ZstdCompressor().compress(bytes(1 << 20))
    with pytest.raises(FieldError, match="a frame of 1048576 bytes, wanted at most"):
        decode_change(data, np.zeros(100, np.uint16))
