"""What lies in a store of pushes: named by digests alone, whole or not at all, read by ranges."""

from __future__ import annotations

import hashlib
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry as known_schemes
from fsspec.transaction import Transaction

from antiphon.clients.digest import chunk_checksum, tensor_checksum
from antiphon.clients.types import (
    FieldError,
    PushHeader,
    PushKind,
    StoredChunks,
    TensorDtype,
    TensorSpec,
)
from antiphon.services.common import weights_store
from antiphon.services.common.weights_store import (
    NotStoredError,
    WeightsStore,
    chunks_of,
    object_name,
    stored_reads,
)

DATA = [bytes(range(200)) * 1000, b"", b"ab" * 3]


def header(kind: PushKind = PushKind.FULL) -> PushHeader:
    """Three tensors of bytes; one is empty."""
    specs = tuple(
        TensorSpec(name, TensorDtype.BFLOAT16, (len(data) // 2,), tensor_checksum(data))
        for name, data in zip("abc", DATA, strict=True)
    )
    return PushHeader(
        "../../etc",
        1,
        0,
        version=1,
        digest=b"\x01" * 32,
        kind=kind,
        tensors=specs,
        base_version=0,
        base_digest=b"\x02" * 32,
        delta_sizes=tuple(map(len, DATA)) if kind is PushKind.DELTA else (),
    )


def test_names_are_made_of_digests_and_the_kind() -> None:
    """Nothing that came over the wire, such as the run's id, is part of a path as it is."""
    one, two = "01" * 32, "02" * 32
    owner = hashlib.sha256(b"../../etc/0").hexdigest()[:16]
    assert object_name(header()) == f"{owner}-{one}.full"
    assert object_name(header(PushKind.DELTA)) == f"{owner}-{two}-{one}.delta"
    assert object_name(header(PushKind.ADAPTER)) == f"{owner}-{one}.adapter"


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_two_publishers_that_write_at_once_both_store_all_of_theirs(
    tmp_path: Path, scheme: str
) -> None:
    """Both are in the middle of their objects at once, and have equal weights."""
    url = f"{scheme}://{tmp_path}/shared"
    both = threading.Barrier(2, timeout=20)
    headers = [replace(header(), agent=agent) for agent in range(2)]

    def write(asked: PushHeader) -> None:
        store = WeightsStore(url)
        store.create()

        def read(index: int) -> memoryview:
            both.wait()
            return memoryview(DATA[index])

        store.write(asked, read)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, headers))
    store = WeightsStore(url)
    whole = b"".join(DATA)
    assert [bytes(store.read(asked, 0, len(whole))) for asked in headers] == [whole] * 2
    store.remove(headers[0])
    assert bytes(store.read(headers[1], 0, len(whole))) == whole


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_store, "CHUNK_BYTES", 64 << 10)
    monkeypatch.setattr(weights_store, "READ_BYTES", 128 << 10)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("received", [[0, 0, 0], [70_000, 0, 0], [200_000, 0, 4], [200_000, 0, 6]])
def test_what_was_written_is_read_from_where_it_stopped(
    tmp_path: Path, received: list[int]
) -> None:
    store, asked = WeightsStore(f"file://{tmp_path}/new"), header()
    store.create()
    stored = store.write(asked, lambda index: memoryview(DATA[index]))
    assert len(stored.checksums) == 4 + 0 + 1
    room = [bytearray(data[:got]) for data, got in zip(DATA, received, strict=True)]
    for start, stop, chunks in stored_reads(asked, stored, received):
        assert stop - start <= 128 << 10
        for chunk in chunks_of(store.read(asked, start, stop), chunks):
            assert chunk_checksum(chunk.data) == chunk.checksum
            assert chunk.offset <= len(room[chunk.tensor_index])
            room[chunk.tensor_index][chunk.offset :] = chunk.data
    assert room == DATA


def test_what_is_not_what_the_header_says_is_not_stored(tmp_path: Path) -> None:
    """The weights may have moved on while they are written."""
    store = WeightsStore(f"file://{tmp_path}")
    with pytest.raises(NotStoredError, match="no longer"):
        store.write(header(), lambda index: memoryview(b"\x07" * len(DATA[index])))
    with pytest.raises(NotStoredError):
        store.read(header(), 0, 4)
    assert not list(tmp_path.iterdir())


def test_bytes_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    store = WeightsStore(f"file://{tmp_path}")
    store.write(header(), lambda index: memoryview(DATA[index]))
    with pytest.raises(NotStoredError, match="ends at byte 200006"):
        store.read(header(), 200_000, 200_010)
    store.remove(header())
    store.remove(header())
    with pytest.raises(NotStoredError):
        store.read(header(), 0, 4)


@pytest.mark.parametrize(
    ("stored", "field"),
    [
        (StoredChunks(1, (0,) * 5), "stored.chunk_bytes"),
        (StoredChunks(1 << 40, (0,) * 5), "stored.chunk_bytes"),
        (StoredChunks(64 << 10, (0,) * 4), "stored.checksums"),
    ],
)
def test_chunks_that_do_not_fit_the_header_are_refused(stored: StoredChunks, field: str) -> None:
    with pytest.raises(FieldError, match=field):
        list(stored_reads(header(), stored, [0, 0, 0]))


class OwnError(Exception):
    pass


class FailingTransaction(Transaction):
    def complete(self, commit: bool = True) -> None:
        raise OwnError("cannot end")


class FailingFiles(MemoryFileSystem):
    """Raises errors that are its own, as the packages for S3 and GCS do."""

    protocol = "failing"
    transaction_type = FailingTransaction

    def cat_file(self, path: str, **options: Any) -> bytes:
        raise OwnError("cannot read")

    def rm_file(self, path: str) -> None:
        raise OwnError("cannot remove")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        raise OwnError("cannot make")


@pytest.fixture
def failing() -> WeightsStore:
    fsspec.register_implementation("failing", FailingFiles, clobber=True)
    return WeightsStore("failing://weights")


def test_errors_of_a_package_are_told_as_those_of_files_are(failing: WeightsStore) -> None:
    """Whoever publishes or reads goes on without the store, whatever the package raises."""
    with pytest.raises(FieldError, match="OwnError: cannot make"):
        failing.create()
    with pytest.raises(OSError, match="OwnError: cannot end"):
        failing.write(header(), lambda index: memoryview(DATA[index]))
    with pytest.raises(NotStoredError, match="OwnError: cannot read"):
        failing.read(header(), 0, 4)
    with pytest.raises(OSError, match="OwnError: cannot remove"):
        failing.remove(header())


def test_an_object_that_cannot_be_given_up_does_not_hide_why(failing: WeightsStore) -> None:
    with pytest.raises(NotStoredError, match="no longer"):
        failing.write(header(), lambda index: memoryview(b"\x07" * len(DATA[index])))


@pytest.mark.parametrize(
    ("scheme", "package", "extra"),
    [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gcs"), ("gcs", "gcsfs", "gcs")],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, scheme: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(known_schemes, scheme, raising=False)
    with pytest.raises(FieldError, match=re.escape(f"pip install 'antiphon[{extra}]'")):
        WeightsStore(f"{scheme}://bucket/weights")


@pytest.mark.parametrize("url", ["weights", "nothing://x/y"])
def test_a_url_that_cannot_be_used_is_named(url: str) -> None:
    with pytest.raises(FieldError, match="weights_store"):
        WeightsStore(url)


def test_a_root_that_cannot_be_made_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FieldError, match="can be written to"):
        WeightsStore(f"file://{tmp_path}/file/below").create()
