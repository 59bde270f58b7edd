"""The random generators of this process, which user code may draw from."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Generators:
    """The generators of Python, numpy and torch as they were at one moment.

    `cuda` is by device, empty where no device has been used.
    """

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch: Tensor
    cuda: list[Tensor]

    @classmethod
    def now(cls) -> Generators:
        """As they are."""
        on_gpu: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return cls(
            python=random.getstate(),
            numpy=np.random.get_state(legacy=False),
            torch=torch.get_rng_state(),
            cuda=torch.cuda.get_rng_state_all() if on_gpu else [],
        )

    def put_back(self) -> None:
        """Have them draw on from here."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        torch.cuda.set_rng_state_all(self.cuda)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Put back the state of this process's random generators (Python, numpy, torch) at the end."""
    before = Generators.now()
    try:
        yield
    finally:
        before.put_back()


class RandomState:
    """What user code draws from, as a part of checkpoints.

    User code goes on drawing for the next rollout batch, which may be dropped before it is trained;
    a checkpoint holds the generators as they were between the batches.
    """

    def __init__(self) -> None:
        self._held = Generators.now()

    def hold(self) -> None:
        """Have checkpoints hold the generators as they are now."""
        self._held = Generators.now()

    def state_dict(self) -> dict[str, Any]:
        """The generators at the last `hold`."""
        held = self._held
        return {
            "python": held.python,
            "numpy": _plain(held.numpy),
            "torch": held.torch,
            "cuda": held.cuda,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the generators where `state_dict` says; devices that are not here are left out."""
        version, words, next_normal = state["python"]
        self._held = Generators(
            python=(version, tuple(words), next_normal),
            numpy=state["numpy"],
            torch=state["torch"],
            cuda=state["cuda"][: torch.cuda.device_count()],
        )
        self._held.put_back()


def _plain(state: Any) -> Any:
    """A state of numpy's with its arrays as lists, which `set_state` takes too."""
    if isinstance(state, Mapping):
        return {name: _plain(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state
