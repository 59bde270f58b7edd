"""The order of a shuffled dataset's rows, worked out a second time, in whole numbers."""

from __future__ import annotations

import hashlib


def split_mix(state: int) -> int:
    """SplitMix64."""
    z = state * 0x9E3779B97F4A7C15 % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def shuffled_rows(count: int, seed: int, epoch: int) -> list[int]:
    """The rows of a dataset of known length in an epoch, counted from 1."""
    key = _key(seed, epoch)
    return sorted(range(count), key=lambda row: split_mix((key + row) % 2**64))


def shuffled_stream(count: int, seed: int, epoch: int, buffer_size: int) -> list[int]:
    """The rows of a stream that is drawn from a buffer."""
    key, order = _key(seed, epoch), []
    buffer, left = list(range(count))[:buffer_size], list(range(count))[buffer_size:]
    for step in range(count):
        place = split_mix((key + step) % 2**64) % len(buffer)
        order.append(buffer[place])
        if left:
            buffer[place] = left.pop(0)
        else:
            buffer[place], buffer[-1] = buffer[-1], buffer[place]
            buffer.pop()
    return order


def _key(seed: int, epoch: int) -> int:
    text = f'["row order",{seed},{epoch}]'
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
