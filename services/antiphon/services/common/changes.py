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
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from antiphon.clients.types import FieldError, TensorDtype

Patterns = npt.NDArray[Any]
"""Elements as their bit patterns, shape [n]: uint16 for bfloat16, uint32 for float32."""
Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BLOCK_ELEMENTS = 1 << 19
"""Elements that are compared at a time: threads that do so side by side then seldom wait for each
other between two operations, and what one leaves the next finds in the cache."""

_PATTERNS = {TensorDtype.BFLOAT16: np.uint16, TensorDtype.FLOAT32: np.uint32}
_EXPONENTS = 256
_HEAD = struct.Struct("<BQ")
_PART = struct.Struct("=4q")
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


@dataclass(frozen=True)
class ChangePart:
    """What changed in elements of a tensor that follow one another.

    Attributes:
        elements: How many they are.
        small_elements: How many of them are small.
        small: Of each small one that changed, how many small ones lie before it.
        large: The indices of the large ones that changed.
        base: What the changed ones were, in order, shape [changed].
        new: And what they became.
    """

    elements: int
    small_elements: int
    small: Indices
    large: Indices
    base: Patterns
    new: Patterns

    @property
    def nbytes(self) -> int:
        """Bytes of `to_bytes`."""
        changed = self.small.nbytes + self.large.nbytes + self.base.nbytes + self.new.nbytes
        return _PART.size + changed

    def to_bytes(self) -> bytes:
        """All of it, for `from_bytes` of another process on the same kind of machine."""
        counts = (self.elements, self.small_elements, len(self.small), len(self.large))
        arrays = (self.small, self.large, self.base, self.new)
        return _PART.pack(*counts) + b"".join(array.tobytes() for array in arrays)

    @classmethod
    def from_bytes(cls, data: memoryview, dtype: TensorDtype) -> ChangePart:
        """What `to_bytes` gave of a tensor in this number format; more bytes may follow."""
        elements, small_elements, small, large = _PART.unpack_from(data)
        middle = _PART.size + 8 * (small + large)
        end = middle + 2 * (small + large) * dtype.size
        indices = np.frombuffer(data[_PART.size : middle], np.int64)
        both = patterns(data[middle:end], dtype).reshape(2, small + large)
        return cls(elements, small_elements, indices[:small], indices[small:], both[0], both[1])


_NO_ELEMENTS = ChangePart(0, 0, *[np.empty(0, np.int64)] * 2, *[np.empty(0, np.uint16)] * 2)


class _Room(threading.local):
    """Where a thread compares blocks: memory that is not taken anew for each of them."""

    def __init__(self) -> None:
        self._elements = 0

    def of(self, block: Patterns) -> tuple[npt.NDArray[np.bool_], Patterns]:
        """Room for a flag of each element, and for each element; until it is asked for again."""
        if len(block) > self._elements:
            self._elements = max(len(block), BLOCK_ELEMENTS)
            self._flags = np.empty(self._elements, np.bool_)
            self._words = np.empty(self._elements, np.uint32)
        return self._flags[: len(block)], self._words.view(block.dtype)[: len(block)]


_ROOM = _Room()


class ChangeEncoder:
    """Encodes the change of one tensor, block by block.

    Args:
        exponent: E, as `best_exponent` gives it; any is right.
    """

    def __init__(self, exponent: int) -> None:
        self._exponent = exponent
        self._elements = 0
        self._small_elements = 0
        self._small: list[Indices] = []
        self._large: list[Indices] = []
        self._base: list[Patterns] = []
        self._new: list[Patterns] = []

    def add(self, base: Patterns, new: Patterns) -> tuple[Indices, Patterns]:
        """Add a block; returns which elements changed, as sorted indices into it, and to what."""
        flags, doubled = _ROOM.of(base)
        moved = np.flatnonzero(np.not_equal(base, new, out=flags))
        np.left_shift(base, 1, out=doubled)
        np.less_equal(doubled, _most_doubled(base.dtype, self._exponent), out=flags)
        small, after = flags.take(moved), new.take(moved)
        ranks, count = _ranks(flags, moved[small])
        self.append(ChangePart(len(base), count, ranks, moved[~small], base.take(moved), after))
        return moved, after

    def append(self, part: ChangePart) -> None:
        """Add the elements that come next, compared already, by the same exponent."""
        self._small.append(part.small + self._small_elements)
        self._large.append(part.large + self._elements)
        self._base.append(part.base)
        self._new.append(part.new)
        self._small_elements += part.small_elements
        self._elements += part.elements

    def part(self) -> ChangePart:
        """All that was added, to be appended to what another process adds."""
        if not self._base:
            return _NO_ELEMENTS
        return ChangePart(
            self._elements,
            self._small_elements,
            *map(np.concatenate, (self._small, self._large, self._base, self._new)),
        )

    def finish(self) -> bytes:
        """The change of all blocks together; empty where nothing changed."""
        part = self.part()
        if not len(part.base):
            return b""
        gaps = _runs(part.large)
        differences = _zigzag(part.new - part.base)[_order(part.base)]
        small = np.zeros(part.small_elements, np.bool_)
        small[part.small] = True
        parts = [
            np.packbits(small).tobytes(),
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
    small: npt.NDArray[np.bool_] = _doubled(base) <= _most_doubled(base.dtype, exponent)
    return small


def _most_doubled(dtype: np.dtype[Any], exponent: int) -> Any:
    """What `_doubled` gives at most of a small element."""
    return dtype.type(((exponent + 1) << _exponent_shift(dtype)) - 1)


def _ranks(marked: npt.NDArray[np.bool_], places: Indices) -> tuple[Indices, int]:
    """How many marked elements lie before each of some places, and how many there are."""
    bits = np.zeros(-(-len(marked) // 64) * 8, np.uint8)
    bits[: -(-len(marked) // 8)] = np.packbits(marked, bitorder="little")
    words = bits.view("<u8")
    counts = np.bitwise_count(words)
    ends = np.cumsum(counts, dtype=np.int64)
    word = places >> 6
    lower = (np.uint64(1) << (places & 63).view(np.uint64)) - np.uint64(1)
    ranks: Indices = (ends - counts).take(word) + np.bitwise_count(words.take(word) & lower)
    return ranks, int(ends[-1]) if len(ends) else 0


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
