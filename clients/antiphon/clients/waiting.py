"""What this process waits for, and how often it has got on: for whoever asks why it does not.

Told from any thread.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_numbers = itertools.count()
_waits: dict[int, Wait] = {}
_steps = itertools.count(1)
_progress = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """Something that is waited for; `since` is a time of `time.monotonic`."""

    what: str
    since: float


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Within the block, this is waited for, for example "Score at 127.0.0.1:50061"."""
    number = next(_numbers)
    _waits[number] = Wait(what, time.monotonic())
    try:
        yield
    finally:
        del _waits[number]


def waits() -> list[Wait]:
    """What is waited for now, the longest first."""
    now = list(_waits.values())  # at once: other threads go on
    return sorted(now, key=lambda wait: wait.since)


def progressed() -> None:
    """The work that this process is there for has got on: an answer came, a step was taken."""
    global _progress
    _progress = next(_steps)


def progress() -> int:
    """Grows with every `progressed`."""
    return _progress
