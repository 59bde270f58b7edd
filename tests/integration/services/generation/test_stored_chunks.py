"""A weights store that hangs costs a service one thread, and nobody an answer.

What hangs is a named pipe in the store's place: whoever opens it waits until it is written to.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from tests.integration.services.generation.harness import (
    IDS,
    ONCE,
    TIMEOUT,
    Push,
    push_of,
    replica,
    request,
)
from tests.support.processes import Processes

from antiphon.clients.errors import CallError
from antiphon.clients.generation import GenerationClient
from antiphon.clients.types import StoredChunks
from antiphon.services.common.weights_store import WeightsStore
from antiphon.services.generation import stored_chunks

Folders = Callable[..., Path]
MORE_THAN_A_POOL_HAS = 40
"""Calls; the default executor has 32 threads at most."""


class HangingStore(WeightsStore):
    """A folder in which the object of a push may hang."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"file://{folder}")
        self._pipe = folder / "pipe"
        os.mkfifo(self._pipe)

    def hang(self, push: Push) -> StoredChunks:
        """Stores a push so that whoever reads it waits."""
        stored = self.write(push.header, push.read)
        path = Path(self.path(push.header))
        path.unlink()
        path.hardlink_to(self._pipe)
        return stored

    def answer(self, push: Push) -> None:
        """Has those who wait told of an error, and the next ones find the push."""
        self.write(push.header, push.read)
        with suppress(OSError):  # nobody waits
            os.close(os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK))


@pytest.fixture
def push(tiny_folders: Folders) -> Push:
    return push_of(tiny_folders(seed=1), 1)


@pytest.fixture
def store(tmp_path: Path, push: Push) -> Iterator[HangingStore]:
    folder = tmp_path / "store"
    folder.mkdir()
    store = HangingStore(folder)
    try:
        yield store
    finally:
        store.answer(push)


def counted(push: Push, sent: list[int]) -> Push:
    """The same, noting each tensor that is read to be sent."""

    class Counted(Push):
        def read(self, index: int) -> memoryview:
            sent.append(index)
            return super().read(index)

    return Counted(push.header, push.tensors)


def reading() -> int:
    return sum(thread.name == "antiphon-read" for thread in threading.enumerate())


async def test_a_store_that_hangs_is_not_asked_again_until_it_answers(
    tiny_folders: Folders, store: HangingStore, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S15: whatever hangs outside, Generate and pushes over the wire go on."""
    monkeypatch.setattr(stored_chunks, "READ_SECONDS", 0.05)
    stored = store.hang(push)
    before = reading()
    async with replica(tiny_folders(seed=0), weights=False, store=store) as r:
        try:
            for version in range(1, MORE_THAN_A_POOL_HAS + 1):
                sent: list[int] = []
                pushed = counted(Push(replace(push.header, version=version), push.tensors), sent)
                result = await r.push(pushed, timeout=10, stored=stored)
                assert (result.weights_version, len(sent)) == (version, len(push.tensors))
                assert len(await r.generate(version=version)) == 1
            assert reading() == before + 1
        finally:
            store.answer(push)
        while reading() > before:
            await asyncio.sleep(0)
        monkeypatch.undo()
        sent = []
        last = Push(replace(push.header, version=version + 1), push.tensors)
        await r.push(counted(last, sent), stored=stored)
        assert sent == [], "it is read again once it has answered"


async def test_a_read_that_an_ended_stream_has_left_is_waited_for(
    tiny_folders: Folders, store: HangingStore, push: Push
) -> None:
    """A connection that breaks while a store is slow does not have all sent over the wire."""
    stored, sent = store.hang(push), list[int]()
    async with replica(tiny_folders(seed=0), weights=False, store=store) as r:
        for _ in range(2):
            with pytest.raises(CallError) as caught:
                await r.push(counted(push, sent), timeout=0.5, stored=stored)
            assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        store.answer(push)
        await r.push(counted(push, sent), stored=stored)
        assert (r.version, sent) == (1, [])


async def test_a_service_whose_store_hangs_answers_and_ends_on_sigterm(
    tiny_folders: Folders, store: HangingStore, push: Push, processes: Processes
) -> None:
    """S13: neither the event loop nor the interpreter waits for the read."""
    stored = store.hang(push)
    started = processes.serve(
        "agent",
        "generation",
        *("--model", str(tiny_folders(seed=0)), "--threads", "1", "--weights-store", store.url),
    )
    client = GenerationClient(await asyncio.to_thread(started.address), retry=ONCE)
    try:
        with pytest.raises(CallError, match="DEADLINE_EXCEEDED"):
            await client.push_weights(push.header, push.read, timeout=1, stored=stored)
        got = [c async for c in client.generate(request(IDS), timeout=TIMEOUT)]
        assert len(got) == 1
    finally:
        await client.close()
    assert await asyncio.to_thread(started.terminate) == 0
