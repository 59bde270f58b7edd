"""What a forked child must not keep of this process, such as its signal handlers.

User code forks: a `multiprocessing.Pool` in a reward function does. Its workers are ended by
SIGTERM, which must not reach handlers that are meant for this process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

_undos: list[Callable[[], None]] = []


@contextlib.contextmanager
def undone_in_children(undo: Callable[[], None]) -> Iterator[None]:
    """Calls `undo` first thing in every child that is forked while this is open."""
    _undos.append(undo)
    try:
        yield
    finally:
        if undo in _undos:
            _undos.remove(undo)


def _undo_all() -> None:
    while _undos:
        _undos.pop()()


os.register_at_fork(after_in_child=_undo_all)
