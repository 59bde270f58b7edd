"""Python's collector of garbage, in a process that has to answer health in time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

FULL_COLLECTION_AFTER = 100
"""Collections of younger objects between two that walk through all of them; Python's own is 10."""


@contextmanager
def short_collections() -> Iterator[None]:
    """Keep collections short while the block serves.

    A collection that walks through everything lets nothing else run meanwhile. What is here by now
    stays, so none needs to look at it; and what thousands of calls hold, a quarter of a second
    to walk through, is looked at less often.
    """
    youngest, middle, oldest = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(youngest, middle, FULL_COLLECTION_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(youngest, middle, oldest)
        gc.unfreeze()
