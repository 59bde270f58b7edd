"""What a process and all that it has started cost: processor seconds and memory (Linux)."""

from __future__ import annotations

import math
import os
import threading
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> set[int]:
    """A process and its descendants that are alive."""
    found = {pid}
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _read(file).split():
            found |= tree(int(child))
    return found


def cpu_seconds(pid: int) -> float:
    """Processor seconds of a process and its descendants, those that have ended included."""
    return _seconds(pid, slice(11, 15))


def kernel_seconds(pid: int) -> float:
    """Those of `cpu_seconds` that the system took."""
    return _seconds(pid, slice(12, 15, 2))


def _seconds(pid: int, kinds: slice) -> float:
    fields = (_read(Path(f"/proc/{one}/stat")).rpartition(")")[2].split() for one in tree(pid))
    return sum(sum(map(int, some[kinds])) for some in fields if some) / _TICKS


def memory(pid: int) -> int:
    """Proportional set size of a process and its descendants in bytes: shared pages count once."""
    rows = (_read(Path(f"/proc/{one}/smaps_rollup")).splitlines() for one in tree(pid))
    return sum(int(row.split()[1]) * 1024 for some in rows for row in some if row[:4] == "Pss:")


class WatchedMemory:
    """The `memory` of a process while the block runs, looked at every half second."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began = time.perf_counter()
        self._seen: list[tuple[float, int]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def peak(self, seconds: float = math.inf) -> int:
        """The largest so far, in bytes, of the first `seconds`."""
        return max((size for moment, size in self._seen if moment <= seconds), default=0)

    def __enter__(self) -> WatchedMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.5):
            self._seen.append((time.perf_counter() - self._began, memory(self._pid)))


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
