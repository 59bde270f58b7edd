"""How the C library keeps memory that was freed; nothing here where it is not glibc."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_no_freed_blocks() -> None:
    """Have large blocks go back to the system as they are freed.

    It keeps blocks up to the size of the largest one that was ever freed. Where layers come and go
    all the time, what is kept in between more than doubles what a process holds; after a burst of
    large requests a service stays as large as it was. Small blocks go back 32 MiB at a time: a
    buffer that grows and goes again would take its pages from the system each time.
    """
    glibc("mallopt", M_MMAP_THRESHOLD, 1 << 20)
    glibc("mallopt", M_TRIM_THRESHOLD, 32 << 20)


def reuse_blocks_of_a_step() -> None:
    """Have a training step reuse what the last one freed, but for blocks of 2 MiB and more.

    These go back as they are freed: kept among smaller ones they are cut up, and what comes next
    needs room of its own. Holds for the whole process, a user's script too, until its end.
    """
    glibc("mallopt", M_MMAP_THRESHOLD, 2 << 20)
    glibc("mallopt", M_TRIM_THRESHOLD, 256 << 20)


def glibc(function: str, *arguments: int) -> None:
    """Call a function of the C library that glibc alone has."""
    if sys.platform.startswith("linux"):
        found = getattr(ctypes.CDLL(None), function, None)
        if found is not None:
            found(*arguments)
