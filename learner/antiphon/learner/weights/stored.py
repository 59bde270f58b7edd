"""Pushes that leave the learner once: written to a store that the replicas read.

Whoever lacks a version gets the deltas from the store; who lacks all gets the nearest anchor, the
last push of all tensors that was stored, and the deltas from it on. So the learner's link carries
each push once, however many replicas there are, join or come back; each of them is sent a header
with the checksums. What a replica does not find there it is sent, as without a store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial

from antiphon.clients.own_thread import in_own_thread
from antiphon.clients.types import LoadedWeights, PushHeader, PushKind, StoredChunks
from antiphon.clients.waiting import waiting_for
from antiphon.learner.weights.encoding import MovedOnError, Push, WeightsEncoder
from antiphon.learner.weights.published import KEPT_STEPS
from antiphon.services.common.weights_store import NotStoredError, WeightsStore, object_name

logger = logging.getLogger(__name__)

SMALLEST = 1 << 12
"""Bytes from which a push is worth storing: a header with its tensors is about as large."""

END_SECONDS = 30.0
"""In which something must be removed, and at the end all; the rest stays where it is."""

NOT_WRITTEN = (OSError, NotStoredError, MovedOnError)
"""How a write may fail."""


class StoredPushes:
    """What one agent's publisher has in a store.

    Args:
        store: The store.
        timeout: Seconds in which a push must be stored.
    """

    def __init__(self, store: WeightsStore, *, timeout: float) -> None:
        self._store = store
        self._timeout = timeout
        self._late: set[asyncio.Task[StoredChunks]] = set()
        self._writing: dict[str, asyncio.Task[StoredChunks]] = {}
        self._deltas: deque[PushHeader] = deque()
        self._anchor: Push | None = None
        self._written = 0

    def take_written(self) -> int:
        """Bytes written since this was last asked."""
        written, self._written = self._written, 0
        return written

    def path(self, pushes: list[Push], encoder: WeightsEncoder) -> list[Push]:
        """The same, or where that is a push of all tensors: the anchor and the deltas since."""
        whole = pushes[-1]
        if self._anchor is None or pushes[0].header.kind is not PushKind.FULL:
            return pushes
        header = self._anchor.header
        if header.digest == whole.header.digest:
            return pushes  # it is stored, under the name that follows from its digest
        start = LoadedWeights(header.run_id, header.incarnation, header.version, header.digest)
        since = encoder.path(start, whole)
        return pushes if since[0].header.kind is PushKind.FULL else [self._anchor, *since]

    async def forget_anchor(self, refused: PushHeader) -> None:
        """Store all tensors anew where somebody needs them: a replica could not take these."""
        if self._anchor is not None and self._anchor.header == refused:
            self._anchor = None
            await self._remove(refused)

    async def put(self, push: Push) -> StoredChunks | None:
        """Store a push, once for all who ask; None where it is not worth it, or fails."""
        if push.nbytes < SMALLEST:
            return None
        name = object_name(push.header)
        task = self._writing.get(name)
        if self._late or (task is None and push.reader is None):
            return None  # a store that hangs is not given more to do
        version = push.header.version
        if task is None:
            task = self._writing[name] = asyncio.create_task(self._write(push))
            task.add_done_callback(partial(self._written_or_not, name, version))
        with waiting_for(f"the weights store, to take version {version}"):
            await asyncio.wait({task}, timeout=self._timeout)
        if not task.done():
            self._late.add(task)
            logger.warning("version %d is sent: it was not stored in %g s", version, self._timeout)
            return None
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, NOT_WRITTEN):
            return None
        raise error

    def _written_or_not(self, name: str, version: int, task: asyncio.Task[StoredChunks]) -> None:
        """Forget what has failed, however late: it is tried again when it is next wanted."""
        self._late.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            self._writing.pop(name, None)
        if isinstance(error, NOT_WRITTEN):
            logger.warning("version %d is not stored: %s", version, error)
        elif error is not None:
            logger.error("version %d is not stored", version, exc_info=error)

    async def close(self) -> None:
        """Wait until what is being written is, and remove it all; in END_SECONDS."""
        seconds = min(self._timeout, END_SECONDS)
        try:
            with waiting_for("the weights store, to remove what the run has stored"):
                async with asyncio.timeout(seconds):
                    await self._remove_all()
        except TimeoutError:
            logger.warning("the weights store did not remove all in %g s", seconds)

    async def _remove_all(self) -> None:
        await asyncio.gather(*self._writing.values(), return_exceptions=True)
        if self._anchor is not None:
            await self._remove(self._anchor.header)
        for header in self._deltas:
            await self._remove(header)

    async def _write(self, push: Push) -> StoredChunks:
        stored = await in_own_thread(self._store.write, push.header, push.read)
        self._written += push.nbytes
        if push.header.kind is PushKind.FULL:
            old, self._anchor = self._anchor, Push(push.header, None)
            if old is not None and old.header.digest != push.header.digest:
                await self._remove(old.header)
        else:
            self._deltas.append(push.header)
            while len(self._deltas) > KEPT_STEPS + 1:
                await self._remove(self._deltas.popleft())
        return stored

    async def _remove(self, header: PushHeader) -> None:
        self._writing.pop(object_name(header), None)
        try:
            async with asyncio.timeout(min(self._timeout, END_SECONDS)):
                await in_own_thread(self._store.remove, header)
        except OSError as error:  # a timeout is one
            why = str(error) or "it does not answer"
            logger.warning("version %d stays in the store: %s", header.version, why)
