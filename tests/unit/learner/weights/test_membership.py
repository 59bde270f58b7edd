"""Whoever cannot be taken in stays left out alone; the others are followed on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
import torch

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError
from antiphon.clients.types import FieldError, LoadedWeights, TensorDtype
from antiphon.learner.weights import membership as membership_module
from antiphon.learner.weights.membership import Membership
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import Replica, Replicas, RunIdentity
from antiphon.learner.weights.wire_weights import OwnWeights


class Serving:
    """Says that it serves."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def watch_health(self) -> AsyncIterator[bool]:
        if self.error is not None:
            raise self.error
        yield True
        await asyncio.Event().wait()


async def admit(replica: Replica) -> None:
    """Whoever it is fits."""


def membership(folder: Path, refused: list[FieldError], client: Serving) -> Membership:
    """Follows one replica by name; each of `refused` ends one attempt to open its channel."""
    (folder / "replicas").write_text("127.0.0.1:50051\n")
    replicas = Replicas(patience=20.0)
    publisher = AgentPublisher(
        RunIdentity("run", 1),
        0,
        OwnWeights(lambda: {"w": torch.ones(1)}, TensorDtype.FLOAT32),
        replicas,
        timeout=5,
    )

    def connect(endpoint: Endpoint) -> Replica:
        if refused:
            raise refused.pop()
        return Replica(endpoint.address, client)  # type: ignore[arg-type]

    return Membership(
        [Endpoint(address=f"file://{folder}/replicas")],
        replicas,
        publisher,
        connect=connect,
        admit=admit,
        every=0.01,
        timeout=5,
    )


async def test_a_replica_whose_channel_cannot_be_opened_is_tried_at_the_next_look(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A certificate is not readable at the moment in which it is renewed."""
    refused = [FieldError("tls.root_certificates", "'ca.pem'", "a readable file")]
    followed = membership(tmp_path, refused, Serving())
    async with AsyncExitStack() as stack, asyncio.timeout(20):
        followed.start(stack)
        await followed._replicas.until(lambda: bool(followed._replicas.live))
    assert "127.0.0.1:50051 stays left out: " in caplog.text


async def test_services_that_have_the_weights_are_called_so_that_they_stay_this_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an update that takes longer than a lease, and in a pause."""
    monkeypatch.setattr(membership_module, "RENEW_SECONDS", 0.001)
    renewed: asyncio.Queue[LoadedWeights] = asyncio.Queue()

    class Renewing(Serving):
        async def renew_lease(self, loaded: LoadedWeights, timeout: float) -> None:
            renewed.put_nowait(loaded)
            if renewed.qsize() == 1:
                raise CallError(grpc.StatusCode.UNAVAILABLE, "away", address="a", rpc="b")

    followed = membership(tmp_path, [], Renewing())
    async with AsyncExitStack() as stack, asyncio.timeout(20):
        followed.start(stack)
        await followed._replicas.until(lambda: bool(followed._replicas.live))
        (replica,) = followed._replicas.live
        replica.acknowledged = LoadedWeights("run", 1, 7, b"d" * 32)
        replica.bound = True
        assert [await renewed.get() for _ in range(3)] == [replica.acknowledged] * 3


async def test_a_background_task_that_fails_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    followed = membership(tmp_path, [], Serving(RuntimeError("a defect")))
    async with AsyncExitStack() as stack, asyncio.timeout(20):
        followed.start(stack)
        while "a defect" not in caplog.text:
            await asyncio.sleep(0)
    assert "watching the health of 127.0.0.1:50051 ended with an error" in caplog.text
