"""Checksums of weights, as `antiphon/v1/generation.proto` defines them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import xxhash

from antiphon.clients.types import TensorSpec


def tensor_checksum(buffer: bytes | bytearray | memoryview) -> bytes:
    """XXH3-128 of a tensor's row-major bytes, big endian, 16 bytes."""
    return xxhash.xxh3_128_digest(buffer)


def chunk_checksum(buffer: bytes | bytearray | memoryview) -> int:
    """XXH3-64 of a chunk's bytes."""
    return xxhash.xxh3_64_intdigest(buffer)


def weights_digest(specs: Iterable[TensorSpec]) -> bytes:
    r"""SHA-256 of what identifies a whole set of weights, 32 bytes.

    Hashes, for each tensor sorted by name, the line ``<name> <dtype> <shape> <checksum>\n``.
    """
    digest = hashlib.sha256()
    for spec in sorted(specs, key=lambda spec: spec.name):
        shape = "x".join(map(str, spec.shape)) or "scalar"
        digest.update(f"{spec.name} {spec.dtype} {shape} {spec.checksum.hex()}\n".encode())
    return digest.digest()
