"""Pushes through S3 and GCS: a learner writes them, real services read them, weights stay bitwise.

The servers are moto and gcp-storage-emulator, in an environment of their own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import fsspec
import pytest
import torch
from tests.integration.learner.generation_servers import Service
from tests.integration.learner.store_cluster import Cluster, cluster
from tests.support.object_storage import Relay, gcs, s3

from antiphon.clients.types import PushHeader, PushKind, TensorDtype, TensorSpec
from antiphon.services.common.tensors import wire_tensors
from antiphon.services.common.weights_store import NotStoredError, WeightsStore

pytestmark = pytest.mark.system


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model's deltas are smaller than what is worth storing."""
    monkeypatch.setattr("antiphon.learner.weights.stored.SMALLEST", 1)


@pytest.fixture(scope="module", params=[s3, gcs], ids=["s3", "gcs"])
def storage(request: pytest.FixtureRequest) -> Iterator[tuple[str, Relay]]:
    """A root in a bucket, and the relay that calls to its server go through."""
    with pytest.MonkeyPatch.context() as environment, request.param(environment) as given:
        yield given


@pytest.fixture
async def two(
    storage: tuple[str, Relay], tiny_model_folder: Path, tmp_path: Path
) -> AsyncIterator[tuple[Cluster, list[Service]]]:
    """A learner and two services that read its store, not yet added."""
    async with cluster(tiny_model_folder, storage[0], tmp_path, True, True) as made:
        yield made


@pytest.fixture
def header() -> PushHeader:
    """A push of one tensor of a megabyte, whose weights are not at hand."""
    spec = TensorSpec("a", TensorDtype.BFLOAT16, (1 << 19,), b"\x00" * 16)
    return PushHeader("run", 1, 0, 1, b"\x01" * 32, PushKind.FULL, (spec,), 0, b"")


def objects(url: str) -> list[str]:
    """Paths of what lies in a store."""
    files, root = fsspec.url_to_fs(url)
    files.invalidate_cache()
    return [] if not files.exists(root) else sorted(files.find(root))


def as_published(made: Cluster, service: Service) -> bool:
    """Whether a service has the learner's weights bit for bit, as they are on the wire."""
    own = {name: t.to(torch.bfloat16) for name, t in wire_tensors(made.model).items()}
    theirs = {name: t.to(torch.bfloat16) for name, t in service.tensors.items()}
    return own.keys() == theirs.keys() and all(torch.equal(own[n], theirs[n]) for n in own)


async def test_services_read_full_and_delta_pushes_bit_for_bit(
    storage: tuple[str, Relay], two: tuple[Cluster, list[Service]]
) -> None:
    url, _ = storage
    made, services = two
    for service in services:
        await made.add(service)
    first = await made.publisher.publish()
    made.step()
    second = await made.publisher.publish()
    assert (first.kind, second.kind) == (PushKind.FULL, PushKind.DELTA)
    assert [client.sent for client in made.clients] == [0, 0]
    assert len(objects(url)) == 2
    assert len(await made.digests()) == 1
    assert all(as_published(made, service) for service in services)
    await made.publisher.close()
    assert objects(url) == [], "what a run has stored ends with it"


async def test_who_joins_late_reads_the_anchor_and_the_deltas_since(
    two: tuple[Cluster, list[Service]],
) -> None:
    made, (one, late) = two
    await made.add(one)
    for _ in range(3):
        await made.publisher.publish()
        made.step()
    client = await made.bring(late)
    full, delta = PushKind.FULL, PushKind.DELTA
    assert client.pushed == [(full, 1), (delta, 2), (delta, 3)]
    assert client.sent == 0
    assert len(await made.digests()) == 1


async def test_a_read_that_is_cut_is_made_again(
    storage: tuple[str, Relay], two: tuple[Cluster, list[Service]]
) -> None:
    _, relay = storage
    made, (one, late) = two
    await made.add(one)
    await made.publisher.publish()
    relay.was_cut, relay.cuts = 0, 1
    client = await made.bring(late)
    assert relay.was_cut == 1
    assert client.sent == 0
    assert as_published(made, late)


async def test_what_reads_that_are_always_cut_do_not_bring_is_sent(
    storage: tuple[str, Relay],
    two: tuple[Cluster, list[Service]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Packages try again for up to a minute; a push does not wait for that."""
    monkeypatch.setattr("antiphon.services.generation.stored_chunks.READ_SECONDS", 3.0)
    _, relay = storage
    made, (one, late) = two
    await made.add(one)
    await made.publisher.publish()
    relay.was_cut, relay.cuts = 0, 1 << 30
    try:
        client = await made.bring(late)
    finally:
        relay.cuts = 0
    assert relay.was_cut > 0
    assert client.sent == made.nbytes
    assert "does not find in the store" in caplog.text
    assert as_published(made, late)


def changed(data: bytes) -> bytes:
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


@pytest.mark.parametrize("damage", [changed, lambda data: data[:-5]], ids=["changed", "short"])
async def test_a_damaged_object_is_refused_and_only_what_it_lacks_is_sent(
    storage: tuple[str, Relay],
    two: tuple[Cluster, list[Service]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[bytes], bytes],
) -> None:
    """S2: nothing damaged is applied, and what had arrived is not asked for again."""
    monkeypatch.setattr("antiphon.services.common.weights_store.READ_BYTES", 1)
    url, _ = storage
    made, (one, late) = two
    await made.add(one)
    await made.publisher.publish()
    (stored,) = objects(url)
    files, _ = fsspec.url_to_fs(url)
    files.pipe_file(stored, damage(files.cat_file(stored)))
    client = await made.bring(late)
    assert 0 < client.sent < made.nbytes
    assert "does not find in the store" in caplog.text
    assert as_published(made, late)


def test_a_bucket_that_is_not_there_is_named(
    storage: tuple[str, Relay], header: PushHeader
) -> None:
    url = storage[0].replace("weights", "elsewhere", 1)
    with pytest.raises(NotStoredError, match="elsewhere"):
        WeightsStore(url).read(header, 0, 4)
