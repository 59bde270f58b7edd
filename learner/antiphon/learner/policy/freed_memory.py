"""Memory that an update has freed, which the C library keeps for the next one.

An update frees a third of what it holds at its peak: gradients and activations. glibc keeps most of
that in the heaps of the threads that computed, where nobody else on the machine can have it while
the agents sample.
"""

from __future__ import annotations

import ctypes
import sys


def give_back_freed_memory() -> None:
    """Hand freed memory back to the system, where the C library is glibc; else do nothing."""
    if not sys.platform.startswith("linux"):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
