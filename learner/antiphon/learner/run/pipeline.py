"""Rollout batches in order of training, some of them sampled before it is their turn.

`max_staleness` S batches are sampled ahead. When a batch is begun, all but the S batches before it
have been trained and published, so at most S publishes lie between the weights that it is sampled
from and the moment when its nodes enter the buffers:

    S = 0    sample 1 | update 1 | sample 2 | update 2 | ...
    S = 1    sample 1, 2 | update 1, sampling 2 | update 2, sampling 3 | ...
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from antiphon.learner.data.tasks import Row
from antiphon.learner.rollout.rollout import Grown
from antiphon.learner.rollout.scoring import OnMainThread


@dataclass(frozen=True)
class RolloutBatch:
    """Rows that are rolled out together; `epoch` counts from 1."""

    epoch: int
    rows: Sequence[Row]
    end_of_epoch: bool


Grow = Callable[[int, Sequence[Row]], Awaitable[Grown]]


class Pipeline:
    """The rollout batches of a run. What is under way at the end of the block is dropped.

    Args:
        batches: All batches, read on the main thread, no earlier than they are needed.
        grow: Grows the trees of a batch.
        ahead: Most batches that are sampled before it is their turn (`max_staleness`).
        on_main_thread: Reads `batches`, which may be the user's code.
    """

    def __init__(
        self,
        batches: Iterator[RolloutBatch],
        grow: Grow,
        *,
        ahead: int,
        on_main_thread: OnMainThread,
    ) -> None:
        self._unread = batches
        self._grow = grow
        self._ahead = ahead
        self._on_main_thread = on_main_thread
        self._read: deque[RolloutBatch] = deque()
        self._growing: deque[asyncio.Task[Grown]] = deque()

    async def __aenter__(self) -> Pipeline:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._growing:
            task.cancel()
        await asyncio.gather(*self._growing, return_exceptions=True)

    async def peek(self) -> RolloutBatch | None:
        """The next batch to train; None where none is left."""
        return self._read[0] if await self._has(1) else None

    async def next(self) -> Grown:
        """The trees of the next batch; to be asked for once all before it are published.

        It and the `ahead` batches after it are begun, where they are not yet.
        """
        for count in range(1, self._ahead + 2):
            if count > len(self._growing) and await self._has(count):
                batch = self._read[count - 1]
                self._growing.append(asyncio.ensure_future(self._grow(batch.epoch, batch.rows)))
        grown = await self._growing[0]
        self._growing.popleft()
        self._read.popleft()
        return grown

    async def _has(self, count: int) -> bool:
        """Read on until so many batches wait; whether there are as many."""
        while len(self._read) < count:
            batch = await self._on_main_thread(partial(next, self._unread, None), "dataset")
            if batch is None:
                return False
            self._read.append(batch)
        return True
