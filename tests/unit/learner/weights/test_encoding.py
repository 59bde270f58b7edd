"""Pushes of one agent's weights are made one at a time, whichever threads ask."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch

from antiphon.clients.types import TensorDtype
from antiphon.learner.weights.encoding import WeightsEncoder
from antiphon.learner.weights.replicas import RunIdentity
from antiphon.learner.weights.wire_weights import OwnWeights


def test_a_joining_replicas_push_is_not_made_while_the_weights_are_encoded() -> None:
    """Both would fill the same buffers."""
    inside = threading.Barrier(2)
    together: list[int] = []

    def tensors() -> Mapping[str, torch.Tensor]:
        with suppress(threading.BrokenBarrierError):
            together.append(inside.wait(timeout=0.2))
        return {"w": torch.ones(2)}

    weights = OwnWeights(tensors, TensorDtype.BFLOAT16)
    encoder = WeightsEncoder(RunIdentity("run", 1), 0, weights, deltas=False)
    calls: list[Callable[[int], object]] = [encoder.encode, encoder.published]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda call: call(1), calls))
    assert together == []
