"""Checksums are those that the contract defines, so that other senders can compute them."""

import hashlib

import xxhash

from antiphon.clients.digest import chunk_checksum, tensor_checksum, weights_digest
from antiphon.clients.types import TensorDtype, TensorSpec


def test_the_checksums_are_xxh3_big_endian() -> None:
    # Published test vectors of XXH3 for the empty input, seed 0.
    assert tensor_checksum(b"").hex() == "99aa06d3014798d86001c324468d497f"
    assert chunk_checksum(b"") == 0x2D06800538D394C2
    data = bytes(range(256)) * 5000
    assert int.from_bytes(tensor_checksum(data), "big") == xxhash.xxh3_128_intdigest(data)
    assert tensor_checksum(memoryview(data)[:10]) == tensor_checksum(data[:10])


def test_the_digest_hashes_a_line_per_tensor_sorted_by_name() -> None:
    specs = [
        TensorSpec("b", TensorDtype.FLOAT32, (), b"\x01" * 16),
        TensorSpec("a.w", TensorDtype.BFLOAT16, (2, 30), b"\xab" * 16),
    ]
    lines = f"a.w bfloat16 2x30 {'ab' * 16}\nb float32 scalar {'01' * 16}\n"
    assert weights_digest(specs) == hashlib.sha256(lines.encode()).digest()
    assert weights_digest(specs[::-1]) == weights_digest(specs)
