"""What an optimiser step changed in a tensor, in a few bits a changed element.

A step moves every weight by about the learning rate. Rounded to bfloat16, a weight moves only where
its unit in the last place is no larger than that: of the small weights nearly all do, of the large
ones nearly none, and the receiver knows which are small. So the change of a tensor is, against its
base in the wire's number format,

    E            1 byte: an element is small where the exponent field of its base is at most E
    G            8 bytes, little endian: how many bytes of gaps there are
    small        one bit for each small element in order: whether it changed (most significant bit
                 first, the last byte filled up with 0)
    gaps         for each large element that changed: how many elements lie between it and the one
                 before (for the first: before it), as bytes of 255 as often as that fits, then
                 the rest
    differences  one number for each changed element, in order of its base without sign, equal ones
                 in order of the tensor: the bit pattern minus that of the base, modulo 2^bits,
                 zigzag (0, -1, 1, -2 become 0, 1, 2, 3); all lowest bytes first, then the next ones

compressed as one frame of Zstandard (RFC 8878). No bytes at all: nothing changed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from antiphon.clients.types import FieldError, TensorDtype

Patterns = npt.NDArray[Any]
"""Elements as their bit patterns, shape [n]: uint16 for bfloat16, uint32 for float32."""
Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BLOCK_ELEMENTS = 1 << 17
"""Elements that are compared at a time: with their copies they fit a core's cache."""

_PATTERNS = {TensorDtype.BFLOAT16: np.uint16, TensorDtype.FLOAT32: np.uint32}
_EXPONENTS = 256
_HEAD = struct.Struct("<BQ")
_LEVEL = 1
_RUN = 255
_LEAST_BITS = 1 / 8  # Of a byte of eight unchanged elements, Huffman's code leaves one bit.


def patterns(buffer: bytes | bytearray | memoryview, dtype: TensorDtype) -> Patterns:
    """A tensor's row-major bytes as bit patterns, sharing their memory."""
    return np.frombuffer(buffer, dtype=_PATTERNS[dtype])


def blocks(elements: int) -> Iterator[slice]:
    """Slices that part so many elements into blocks."""
    for start in range(0, elements, BLOCK_ELEMENTS):
        yield slice(start, min(start + BLOCK_ELEMENTS, elements))


def best_exponent(base: Patterns, new: Patterns) -> int:
    """The E that encodes a change in fewest bits, estimated from elements picked at random.

    Args:
        base: A sample of the elements, before.
        new: The same elements, after.
    """
    exponents = _doubled(base) >> _exponent_shift(base.dtype)
    small = np.cumsum(np.bincount(exponents, minlength=_EXPONENTS)).astype(np.float64)
    moved = np.cumsum(np.bincount(exponents[base != new], minlength=_EXPONENTS)).astype(np.float64)
    bits = small * np.maximum(_entropy(small, moved), _LEAST_BITS)
    bits += len(base) * _entropy(np.full_like(small, len(base)), moved[-1] - moved)
    return int(np.argmin(bits))


def _entropy(elements: Floats, changed: Floats) -> Floats:
    """Bits an element where so many of so many changed."""
    share = (changed + 1e-3) / (elements + 2e-3)
    return -(share * np.log2(share) + (1 - share) * np.log2(1 - share))


class ChangeEncoder:
    """Encodes the change of one tensor, block by block.

    Args:
        exponent: E, as `best_exponent` gives it; any is right.
    """

    def __init__(self, exponent: int) -> None:
        self._exponent = exponent
        self._elements = 0
        self._small: list[npt.NDArray[np.bool_]] = []
        self._large: list[Indices] = []
        self._base: list[Patterns] = []
        self._new: list[Patterns] = []

    def add(self, base: Patterns, new: Patterns) -> Indices:
        """Add a block of elements and return which of them changed, as sorted indices into it."""
        small = _is_small(base, self._exponent)
        changed = base != new
        picked = np.flatnonzero(small | changed)
        picked_small, picked_changed = small[picked], changed[picked]
        moved: Indices = picked[picked_changed]
        self._small.append(picked_changed[picked_small])
        self._large.append(picked[picked_changed & ~picked_small] + self._elements)
        self._base.append(base[moved])
        self._new.append(new[moved])
        self._elements += len(base)
        return moved

    def finish(self) -> bytes:
        """The change of all blocks together; empty where nothing changed."""
        if not any(map(len, self._base)):
            return b""
        base, new = np.concatenate(self._base), np.concatenate(self._new)
        gaps = _runs(np.concatenate(self._large))
        differences = _zigzag(new - base)[_order(base)]
        parts = [
            np.packbits(np.concatenate(self._small)).tobytes(),
            gaps.tobytes(),
            differences.view(np.uint8).reshape(len(differences), -1).T.tobytes(),
        ]
        raw = _HEAD.pack(self._exponent, len(gaps)) + b"".join(parts)
        return zstandard.ZstdCompressor(level=_LEVEL).compress(raw)


def decode_change(data: bytes | memoryview, base: Patterns) -> tuple[Patterns, Patterns]:
    """Which elements changed, and what to.

    Args:
        data: What `ChangeEncoder` gave.
        base: The whole tensor before the change; it is left as it is.

    Returns:
        Sorted indices (int64) and new bit patterns, both of shape [changed].

    Raises:
        FieldError: `data` is no change of such a base.
    """
    if len(data) == 0:
        return np.empty(0, np.int64), np.empty(0, base.dtype)
    raw = np.frombuffer(_decompressed(data, base), np.uint8)
    if len(raw) < _HEAD.size:
        raise _unfit(f"{len(raw)} bytes", f"a head of {_HEAD.size}")
    exponent, gap_bytes = _HEAD.unpack(raw[: _HEAD.size].tobytes())
    small = np.concatenate(
        [
            np.flatnonzero(_is_small(base[block], exponent)) + block.start
            for block in blocks(len(base))
        ]
    )
    bits_end = _HEAD.size + (len(small) + 7) // 8
    gaps_end = bits_end + gap_bytes
    if gaps_end > len(raw):
        raise _unfit(f"{len(raw)} bytes", f"at least {gaps_end} for its gaps")
    bits = np.unpackbits(raw[_HEAD.size : bits_end], count=len(small)).view(np.bool_)
    large = _positions(raw[bits_end:gaps_end], len(base))
    positions = np.concatenate([small[bits], large])
    positions.sort()
    if len(positions) > 1 and not np.all(positions[1:] > positions[:-1]):
        raise _unfit("an element that changes twice", "each element once")
    wanted = gaps_end + len(positions) * base.itemsize
    if len(raw) != wanted:
        raise _unfit(f"{len(raw)} bytes", f"{wanted} for {len(positions)} changes")
    planes = raw[gaps_end:].reshape(base.itemsize, len(positions))
    differences = np.empty(len(positions), base.dtype)
    old = base[positions]
    differences[_order(old)] = np.ascontiguousarray(planes.T).reshape(-1).view(base.dtype)
    return positions, old + _unzigzag(differences)


def _decompressed(data: bytes | memoryview, base: Patterns) -> bytes:
    # What a change of every element takes bounds what a frame may claim to hold.
    most = _HEAD.size + len(base) // 8 + 1 + 2 * len(base) + base.nbytes
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= most:
            raise _unfit(f"a frame of {size} bytes", f"at most {most} for such a tensor")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
    except zstandard.ZstdError as error:
        raise _unfit(f"bytes that Zstandard refuses ({error})", "one of its frames") from error


def _unfit(got: str, wanted: str) -> FieldError:
    return FieldError("change", got, wanted)


def _doubled(base: Patterns) -> Patterns:
    """Bit patterns without sign, times 2: they order elements by magnitude."""
    return np.left_shift(base, 1)


def _exponent_shift(dtype: np.dtype[Any]) -> int:
    return 8 * dtype.itemsize - 8


def _is_small(base: Patterns, exponent: int) -> npt.NDArray[np.bool_]:
    limit = base.dtype.type(((exponent + 1) << _exponent_shift(base.dtype)) - 1)
    small: npt.NDArray[np.bool_] = _doubled(base) <= limit
    return small


def _order(base: Patterns) -> Indices:
    return np.argsort(_doubled(base), kind="stable")


def _runs(positions: Indices) -> npt.NDArray[np.uint8]:
    before = np.concatenate([np.full(1, -1), positions[:-1]]) if len(positions) else positions
    whole, rest = np.divmod(positions - before - 1, _RUN)
    ends = np.cumsum(whole + 1)
    runs = np.full(ends[-1] if len(ends) else 0, _RUN, np.uint8)
    runs[ends - 1] = rest
    return runs


def _positions(runs: npt.NDArray[np.uint8], elements: int) -> Indices:
    ends = np.flatnonzero(runs != _RUN)
    if len(runs) and (not len(ends) or ends[-1] != len(runs) - 1):
        raise _unfit("gaps that end in a byte of 255", "a byte below it for each change")
    passed = np.cumsum(runs, dtype=np.int64)[ends]
    positions: Indices = passed + np.arange(len(ends))
    if len(positions) and positions[-1] >= elements:
        raise _unfit(f"a change of element {positions[-1]}", f"below {elements}")
    return positions


def _zigzag(difference: Patterns) -> Patterns:
    signed = difference.view(f"i{difference.itemsize}")
    folded: Patterns = (signed << 1) ^ (signed >> (8 * signed.itemsize - 1))
    return folded.view(difference.dtype)


def _unzigzag(numbers: Patterns) -> Patterns:
    result: Patterns = (numbers >> 1) ^ (0 - (numbers & 1))
    return result
