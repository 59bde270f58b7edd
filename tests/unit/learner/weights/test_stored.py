"""A weights store that hangs holds up no push."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from antiphon.clients.types import PushHeader, StoredChunks, TensorDtype
from antiphon.learner.weights import stored as stored_module
from antiphon.learner.weights.encoding import Push, WeightsEncoder
from antiphon.learner.weights.replicas import RunIdentity
from antiphon.learner.weights.stored import StoredPushes
from antiphon.learner.weights.wire_weights import OwnWeights
from antiphon.services.common.weights_store import WeightsStore


class Failing(WeightsStore):
    """Ends its first write with an error."""

    def __init__(self, url: str, error: OSError) -> None:
        super().__init__(url)
        self.error: OSError | None = error

    def write(self, header: PushHeader, read_tensor: Callable[[int], memoryview]) -> StoredChunks:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return super().write(header, read_tensor)


class Hanging(WeightsStore):
    """Writes nothing before it is let go on."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.go_on = threading.Event()
        self.begun = 0
        self.error: OSError | None = None

    def write(self, header: PushHeader, read_tensor: Callable[[int], memoryview]) -> StoredChunks:
        self.begun += 1
        self.go_on.wait()
        if self.error is not None:
            raise self.error
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


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EIO])
async def test_a_write_that_fails_is_tried_again_when_it_is_next_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    stored = StoredPushes(Failing(f"file://{tmp_path}", OSError(number, "no")), timeout=20)
    assert await stored.put(push(1)) is None
    assert "version 1 is not stored" in caplog.text
    assert await stored.put(push(1)) is not None
    await stored.close()


async def test_a_late_write_that_fails_is_tried_again_too(
    hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    hanging.error = OSError(errno.EIO, "no")
    stored = StoredPushes(hanging, timeout=0.05)
    assert await stored.put(push(1)) is None
    (late,) = stored._late
    hanging.go_on.set()
    await asyncio.wait({late})
    assert "version 1 is not stored" in caplog.text
    hanging.error, stored._timeout = None, 20.0
    assert await stored.put(push(1)) is not None
    await stored.close()


async def test_a_write_that_failed_keeps_none_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_module.logger, "disabled", True)  # pytest keeps what is logged
    stored = StoredPushes(Failing(f"file://{tmp_path}", TimeoutError("no")), timeout=20)
    failed = push(1)
    kept = weakref.ref(failed)
    assert await stored.put(failed) is None
    del failed
    while any(thread.name == "antiphon-write" for thread in threading.enumerate()):
        await asyncio.sleep(0)
    gc.collect()
    assert kept() is None
    await stored.close()


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
