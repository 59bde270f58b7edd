"""A store that learner and generation services share, so that each push leaves the learner once.

What a push brings lies there as one object: the bytes of each tensor, or its encoded change, one
after another in order of the header. Its name is made of digests, of the weights and of who
publishes them: nothing that came over the wire is used as a path, and who removes an object takes
nothing away from another agent or run with equal weights.
The checksums of its chunks travel with the push, so whoever reads holds the bytes against them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import fsspec
import xxhash
from fsspec.implementations.local import LocalFileSystem

from antiphon.clients.digest import chunk_checksum
from antiphon.clients.types import (
    FieldError,
    PushHeader,
    PushKind,
    StoredChunks,
    WeightsChunk,
)

CHUNK_BYTES = 4 << 20
SMALLEST_CHUNK, LARGEST_CHUNK = 64 << 10, 64 << 20
READ_BYTES = 32 << 20
"""Bytes that are read at a time, where a chunk is not more."""

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""By scheme of a URL: the extra with the package that fsspec needs for it."""


class NotStoredError(Exception):
    """What a push brings is not in the store, or cannot be read from there."""


def object_name(header: PushHeader) -> str:
    """The name of the object with what a push brings: hex digits and the kind."""
    owner = hashlib.sha256(f"{header.run_id}/{header.agent}".encode()).hexdigest()[:16]
    digest = header.digest.hex()
    if header.kind is PushKind.DELTA:
        return f"{owner}-{header.base_digest.hex()}-{digest}.delta"
    return f"{owner}-{digest}.{header.kind.value}"


class WeightsStore:
    """Objects of pushes under one root, by fsspec: a folder, or a bucket of S3, GCS and the like.

    Args:
        url: The root, for example ``file:///mnt/weights`` or ``s3://bucket/weights``.

    Raises:
        FieldError: The URL cannot be used, or the package for its scheme is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        wanted = "a URL such as file:///mnt/weights or s3://bucket/weights"
        scheme, separator, _ = url.partition("://")
        if not separator:
            raise FieldError("weights_store", repr(url), wanted)
        try:
            with _os_errors(url):
                self._files, self._root = fsspec.url_to_fs(url)
        except ImportError as error:
            extra = EXTRAS.get(scheme)
            if extra is not None:
                wanted = f"the package for {scheme}://; run: pip install 'antiphon[{extra}]'"
            raise FieldError("weights_store", f"{url!r} ({error})", wanted) from error
        except OSError as error:
            raise FieldError("weights_store", f"{url!r} ({error})", wanted) from error

    def create(self) -> None:
        """Make the root, where it is not there yet; whoever reads only does not need to. Blocks.

        Raises:
            FieldError: It cannot be made.
        """
        try:
            with _os_errors(self._root):
                self._files.makedirs(self._root, exist_ok=True)
        except OSError as error:
            wanted = "a store that can be written to"
            raise FieldError("weights_store", f"{self.url!r} ({error})", wanted) from error

    def path(self, header: PushHeader) -> str:
        """Where what a push brings lies."""
        return f"{self._root.rstrip('/')}/{object_name(header)}"

    def write(self, header: PushHeader, read_tensor: Callable[[int], memoryview]) -> StoredChunks:
        """Store what a push brings; it appears whole or not at all. Blocks.

        Args:
            header: Of the push.
            read_tensor: Gives a tensor's bytes, or its encoded change, by index.

        Raises:
            OSError: It cannot be written.
            NotStoredError: The bytes are not those of the header: the weights have moved on.
        """
        whole = header.kind is not PushKind.DELTA
        checksums: list[int] = []
        path = self.path(header)
        with self._whole_file(path) as file:
            for index, spec in enumerate(header.tensors):
                data = read_tensor(index).cast("B")
                if whole and xxhash.xxh3_128_digest(data) != spec.checksum:
                    raise NotStoredError(f"{spec.name} is no longer what the push says")
                for offset in range(0, data.nbytes, CHUNK_BYTES):
                    part = data[offset : offset + CHUNK_BYTES]
                    checksums.append(chunk_checksum(part))
                    with _os_errors(path):
                        file.write(part)
        return StoredChunks(CHUNK_BYTES, tuple(checksums))

    @contextmanager
    def _whole_file(self, path: str) -> Iterator[BinaryIO]:
        """A file to write to that is there once the block ends without an error."""
        if not isinstance(self._files, LocalFileSystem):
            # Of its own: a file system that is shared has one transaction for all its writers.
            files, _ = fsspec.url_to_fs(self.url, skip_instance_cache=True)
            stopped: Exception | None = None
            try:
                with _os_errors(path), files.transaction, files.open(path, "wb") as file:
                    try:
                        yield file
                    except Exception as error:
                        stopped = error
                        raise
            except OSError:
                if stopped is not None:  # giving up the object may fail too, that tells nothing
                    raise stopped from None
                raise
            return
        part = Path(f"{path}.{uuid4().hex}.part")
        try:
            with part.open("wb") as file:
                yield file
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise

    def remove(self, header: PushHeader) -> None:
        """Forget what a push brought, where it is there. Blocks.

        Raises:
            OSError: It cannot be removed.
        """
        path = self.path(header)
        try:
            with _os_errors(path):
                self._files.rm_file(path)
        except FileNotFoundError:
            return

    def read(self, header: PushHeader, start: int, stop: int) -> memoryview:
        """Bytes of what a push brings. Blocks.

        Raises:
            NotStoredError: They are not there, or cannot be read.
        """
        path = self.path(header)
        try:
            with _os_errors(path):
                data = self._files.cat_file(path, start=start, end=stop)
        except OSError as error:
            raise NotStoredError(f"{path}: {error}") from error
        if len(data) != stop - start:
            raise NotStoredError(f"{path} ends at byte {start + len(data)}, wanted {stop}")
        return memoryview(data)


@contextmanager
def _os_errors(path: str) -> Iterator[None]:
    """What goes wrong in fsspec, as an OSError: each scheme's package has errors of its own."""
    try:
        yield
    except (OSError, ImportError):
        raise
    except Exception as error:
        raise OSError(f"{path}: {type(error).__name__}: {error}") from error


def stored_reads(
    header: PushHeader, stored: StoredChunks, received: Sequence[int]
) -> Iterator[tuple[int, int, list[tuple[int, int, int, int]]]]:
    """What to read of an object: a range, and its chunks, as far as they have not arrived.

    Yields:
        Start and stop of the range, and of each chunk within it its tensor, its offset there, its
        size, and its checksum.

    Raises:
        FieldError: The chunks do not fit the header.
    """
    size = stored.chunk_bytes
    if not SMALLEST_CHUNK <= size <= LARGEST_CHUNK:
        raise FieldError(
            "stored.chunk_bytes", size, f"a number from {SMALLEST_CHUNK} to {LARGEST_CHUNK}"
        )
    count = sum(-(-nbytes // size) for nbytes in header.sizes)
    if len(stored.checksums) != count:
        raise FieldError("stored.checksums", f"{len(stored.checksums)} of them", f"{count}")
    checksums = iter(stored.checksums)
    start, at, chunks = 0, 0, list[tuple[int, int, int, int]]()
    for tensor, nbytes in enumerate(header.sizes):
        for offset in range(0, nbytes, size):
            length, checksum = min(size, nbytes - offset), next(checksums)
            here = received[tensor] >= offset + length
            if chunks and (here or at + length - start > READ_BYTES):
                yield start, at, chunks
                chunks = []
            if not here:
                start = start if chunks else at
                chunks.append((tensor, offset, length, checksum))
            at += length
    if chunks:
        yield start, at, chunks


def chunks_of(
    data: memoryview, chunks: Sequence[tuple[int, int, int, int]]
) -> Iterator[WeightsChunk]:
    """The chunks in a range that was read, as they would have come over the wire."""
    at = 0
    for tensor, offset, length, checksum in chunks:
        yield WeightsChunk(tensor, offset, data[at : at + length], checksum)
        at += length
