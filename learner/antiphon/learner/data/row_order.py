"""The order of a dataset's rows in each epoch, as a pure function of seed and epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from antiphon.learner.rollout.seeds import stable_hash

T = TypeVar("T")

# Steele, Lea, Flood: Fast splittable pseudorandom number generators (OOPSLA 2014), SplitMix64.
_GAMMA = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


@dataclass(frozen=True)
class RowOrder:
    """A shuffle by seed: the same on every machine, and after a resume.

    Attributes:
        seed: The run's.
        buffer_size: Rows that are held of a dataset that does not know its length.
    """

    seed: int
    buffer_size: int = 1000

    def permutation(self, count: int, epoch: int) -> Sequence[int]:
        """The rows 0 to `count` - 1 in the order of an epoch: sorted by a hash of each.

        Row i has the key SplitMix64(k + i), k a hash of seed and epoch; keys of one epoch are
        distinct.
        """
        keys = _split_mix(np.uint64(self._key(epoch)) + np.arange(count, dtype=np.uint64))
        order: list[int] = np.argsort(keys, kind="stable").tolist()
        return order

    def shuffled(self, items: Iterable[T], epoch: int) -> Iterator[T]:
        """The items of a stream, each drawn from the `buffer_size` next ones.

        The buffer is filled; then, item after item, the one at place SplitMix64(k + step) modulo
        the buffer's length goes out and the stream's next takes its place, or, at the stream's
        end, the buffer's last.
        """
        key, step = self._key(epoch), 0
        buffer: list[T] = []
        for item in items:
            if len(buffer) < self.buffer_size:
                buffer.append(item)
                continue
            place = _draw(key, step, len(buffer))
            step += 1
            yield buffer[place]
            buffer[place] = item
        while buffer:
            place = _draw(key, step, len(buffer))
            step += 1
            buffer[place], buffer[-1] = buffer[-1], buffer[place]
            yield buffer.pop()

    def _key(self, epoch: int) -> int:
        return stable_hash("row order", self.seed, epoch)


def _split_mix(states: np.ndarray) -> np.ndarray:
    """The output of SplitMix64 for each state (uint64, wraps around): a bijection."""
    mixed = states * np.uint64(_GAMMA)
    for shift, factor in _MIX:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed


def _draw(key: int, step: int, count: int) -> int:
    state = np.array([(key + step) % 2**64], dtype=np.uint64)
    return int(_split_mix(state)[0]) % count
