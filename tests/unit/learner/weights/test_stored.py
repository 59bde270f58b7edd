"""A weights store that hangs holds up no push."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from antiphon.clients.types import PushHeader, StoredChunks, TensorDtype
from antiphon.learner.weights.encoding import Push, WeightsEncoder
from antiphon.learner.weights.replicas import RunIdentity
from antiphon.learner.weights.stored import StoredPushes
from antiphon.learner.weights.wire_weights import OwnWeights
from antiphon.services.common.weights_store import WeightsStore


class Hanging(WeightsStore):
    """Writes nothing before it is let go on."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.go_on = threading.Event()
        self.begun = 0

    def write(self, header: PushHeader, read_tensor: Callable[[int], memoryview]) -> StoredChunks:
        self.begun += 1
        self.go_on.wait()
        return super().write(header, read_tensor)


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Hanging]:
    store = Hanging(f"file://{tmp_path}")
    try:
        yield store
    finally:
        store.go_on.set()


def push(version: int) -> Push:
    weights = {"w": torch.full((4096,), float(version))}
    own = OwnWeights(lambda: weights, TensorDtype.BFLOAT16)
    return WeightsEncoder(RunIdentity("run", 1), 0, own, deltas=False).encode(version)


def names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


async def test_what_a_store_does_not_take_in_time_is_sent(
    hanging: Hanging, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored = StoredPushes(hanging, timeout=0.05)
    assert await stored.put(push(1)) is None
    assert "version 1 is sent" in caplog.text
    assert await stored.put(push(2)) is None
    assert hanging.begun == 1, "a store that hangs is not given more to do"
    (late,) = stored._late
    hanging.go_on.set()
    await late
    stored._timeout = 20.0
    assert await stored.put(push(2)) is not None, "it is used again once it has answered"
    await stored.close()
    assert names(tmp_path) == []


def test_a_process_ends_though_its_store_hangs(hanging: Hanging) -> None:
    """S13: neither the event loop nor the interpreter waits for the write."""

    async def run() -> None:
        stored = StoredPushes(hanging, timeout=0.05)
        assert await stored.put(push(1)) is None
        await stored.close()

    before = set(threading.enumerate())
    ending = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    ending.start()
    ending.join(20)
    assert hanging.begun == 1
    assert not ending.is_alive()
    assert [t for t in threading.enumerate() if t not in before and not t.daemon] == []


async def test_closing_does_not_wait_for_a_store_that_hangs(
    hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    stored = StoredPushes(hanging, timeout=0.05)
    await stored.put(push(1))
    await stored.close()
    assert "did not remove all" in caplog.text
    hanging.go_on.set()
