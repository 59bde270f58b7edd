"""Pushes that leave the learner once: real services read them from a folder that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.integration.learner import store_cluster
from tests.integration.learner.generation_servers import Service, prompts, sampled
from tests.integration.learner.store_cluster import Cluster

from antiphon.clients.types import PushKind, SamplingParameters
from antiphon.learner.rollout.agents import Agent
from antiphon.learner.weights.replicas import RunIdentity


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model's deltas are smaller than what is worth storing."""
    monkeypatch.setattr("antiphon.learner.weights.stored.SMALLEST", 1)


def cluster(
    model: Path, folder: Path, *stores: bool
) -> AbstractAsyncContextManager[tuple[Cluster, list[Service]]]:
    """A cluster whose store is a folder."""
    return store_cluster.cluster(model, f"file://{folder}/store", folder, *stores)


@pytest.mark.parametrize("replicas", [1, 3])
async def test_what_leaves_the_learner_does_not_grow_with_the_replicas(
    tiny_model_folder: Path, tmp_path: Path, replicas: int
) -> None:
    folder = tmp_path / "store"
    async with cluster(tiny_model_folder, tmp_path, *[True] * replicas) as (made, services):
        for service in services:
            await made.add(service)
        first = await made.publisher.publish()
        made.step()
        second = await made.publisher.publish()
        assert first.nbytes == made.nbytes
        assert (second.kind, second.nbytes < made.nbytes / 2) == (PushKind.DELTA, True)
        stored = sum(file.stat().st_size for file in folder.iterdir())
        assert stored == first.nbytes + second.nbytes
        assert [client.sent for client in made.clients] == [0] * replicas
        assert len(await made.digests()) == 1
        agent = Agent(
            RunIdentity("run", 1),
            0,
            made.replicas,
            made.publisher,
            sampling=SamplingParameters(1.0, None, None, 4),
            context_length=256,
            timeout=20,
        )
        assert len(await sampled(agent, prompts(4))) == 8
    assert not list(folder.iterdir()), "what a run has stored ends with it"


async def test_a_service_without_a_store_is_sent_everything(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    async with cluster(tiny_model_folder, tmp_path, True, False) as (made, services):
        for service in services:
            await made.add(service)
        published = await made.publisher.publish()
        assert published.nbytes == 2 * made.nbytes
        assert [client.sent for client in made.clients] == [0, made.nbytes]
        assert len(await made.digests()) == 1


async def test_who_missed_versions_comes_by_the_nearest_anchor_and_the_deltas_since(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    async with cluster(tiny_model_folder, tmp_path, True, True) as (made, (one, two)):
        await made.add(one)
        for _ in range(3):
            await made.publisher.publish()
            made.step()
        client = await made.bring(two)
        full, delta = PushKind.FULL, PushKind.DELTA
        assert client.pushed == [(full, 1), (delta, 2), (delta, 3)]
        assert client.sent == 0
        assert len(await made.digests()) == 1


async def test_who_missed_some_versions_comes_by_their_deltas(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    async with cluster(tiny_model_folder, tmp_path, True, True) as (made, (one, two)):
        await made.add(one)
        away = await made.add(two)
        await made.publisher.publish()
        away.reachable = away.serving = False
        for _ in range(2):
            made.step()
            await made.publisher.publish()
        await made.publisher.bring(away)
        assert [version for _, version in made.clients[1].pushed] == [1, 2, 3]
        assert made.clients[1].sent == 0
        assert len(await made.digests()) == 1


def damaged(data: bytes) -> bytes:
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


@pytest.mark.parametrize("damage", [damaged, lambda data: data[:-5]], ids=["damaged", "cut"])
async def test_what_a_replica_does_not_find_sound_in_the_store_it_is_sent(
    tiny_model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[bytes], bytes],
) -> None:
    """S2: nothing damaged is applied, and what had arrived is not asked for again."""
    monkeypatch.setattr("antiphon.services.common.weights_store.READ_BYTES", 1)
    folder = tmp_path / "store"
    async with cluster(tiny_model_folder, tmp_path, True, True) as (made, (one, two)):
        await made.add(one)
        await made.publisher.publish()
        (stored,) = folder.iterdir()
        stored.write_bytes(damage(stored.read_bytes()))
        client = await made.bring(two)
        assert 0 < client.sent < made.nbytes
        assert "does not find in the store" in caplog.text
        assert len(await made.digests()) == 1


async def test_an_anchor_that_is_gone_is_stored_anew(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    async with cluster(tiny_model_folder, tmp_path, True, True) as (made, (one, two)):
        await made.add(one)
        await made.publisher.publish()
        made.step()
        await made.publisher.publish()
        for stored in folder.iterdir():
            stored.unlink()
        client = await made.bring(two)
        assert client.pushed == [(PushKind.FULL, 1), (PushKind.FULL, 2)]
        assert client.sent == 0
        assert len(await made.digests()) == 1


async def test_a_store_that_cannot_be_written_costs_no_push(
    tiny_model_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "store"
    async with cluster(tiny_model_folder, tmp_path, True) as (made, (one,)):
        await made.add(one)
        folder.rmdir()
        folder.write_text("no folder")
        published = await made.publisher.publish()
        assert published.nbytes == made.nbytes
        assert "is not stored" in caplog.text
        folder.unlink()
        folder.mkdir()
        await asyncio.sleep(0)
