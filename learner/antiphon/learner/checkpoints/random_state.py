"""The random generators of this process, which user code may draw from."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept_generators() -> Iterator[None]:
    """Put back the state of this process's random generators (Python, numpy, torch) at the end."""
    python, of_torch = random.getstate(), torch.get_rng_state()
    on_gpu: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if on_gpu else []
    numpy = sys.modules.get("numpy")
    of_numpy = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(of_torch)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        if numpy is not None and of_numpy is not None:
            numpy.random.set_state(of_numpy)
