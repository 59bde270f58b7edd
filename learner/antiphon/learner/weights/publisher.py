"""Publishes one agent's weights to its replicas: encoded once, each replica on its own channel.

A version counts as published when every reachable replica has said that it applied it. A replica
that lost its weights is sent the present version again. One that cannot be reached holds up nobody:
where others are left the run goes on without it, every publish tries it again beside the others,
and once a push reaches it, it takes its share again.

Each replica gets what brings it on from what it has acknowledged (`encoding`): what changed, where
that is less than all. One that turns out to have other weights (PUSH_BASE_MISMATCH) is sent what it
then lacks, or all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.types import FieldError, LoadedWeights, PushKind, TensorDtype
from antiphon.learner.concurrency import task_group
from antiphon.learner.weights.encoding import Push, WeightsEncoder
from antiphon.learner.weights.replicas import (
    Replica,
    RunIdentity,
    RunSupersededError,
    ServiceTakenError,
    lose,
    raise_explained,
)

logger = logging.getLogger(__name__)

_NOT_FROM_THIS_BASE = frozenset({"PUSH_BASE_MISMATCH", "PUSH_CHECKSUM_MISMATCH"})
"""Why a delta is refused that all tensors would be taken instead of."""


@dataclass(frozen=True)
class Publication:
    """A version that every reachable replica has applied.

    `nbytes` is what went to these replicas together, `seconds` from encoding to the last answer,
    `pause_seconds` the longest time in which a replica could not generate, `kind` FULL where any of
    them was sent all tensors.
    """

    agent: int
    version: int
    nbytes: int
    seconds: float
    pause_seconds: float
    kind: PushKind = PushKind.FULL


@dataclass(frozen=True)
class _Applied:
    """What one replica was sent until it had applied a version."""

    kind: PushKind
    nbytes: int = 0
    pause_seconds: float = 0.0


class AgentPublisher:
    """Counts and sends the versions of one agent's weights.

    Args:
        identity: The run that publishes.
        agent: Whose weights these are, counted from 0.
        tensors: The weights as they are on the wire, by name; read at every publish.
        dtype: Their number format on the wire.
        replicas: The agent's processes, one at least.
        timeout: Seconds per push and replica.
        deltas: Send what changed where that is less; it takes a copy of the weights on the wire.
    """

    def __init__(
        self,
        identity: RunIdentity,
        agent: int,
        tensors: Callable[[], Mapping[str, Tensor]],
        dtype: TensorDtype,
        replicas: Sequence[Replica],
        *,
        timeout: float,
        deltas: bool = True,
    ) -> None:
        self._identity = identity
        self._agent = agent
        self._replicas = replicas
        self._timeout = timeout
        self._encoder = WeightsEncoder(
            identity,
            agent,
            tensors,
            dtype,
            deltas=deltas and any(PushKind.DELTA in replica.push_kinds for replica in replicas),
        )
        self._digest = b""
        self._resumed_digest: bytes | None = None
        self.version = 0
        """The version that every reachable replica has applied; 0 before the first publish."""
        self._returning: dict[str, asyncio.Task[None]] = {}
        self._superseded: RunSupersededError | None = None
        self.moving = asyncio.Lock()
        """Held while the weights change and until the new ones are published."""

    async def publish(self) -> Publication:
        """Send the present weights to every replica as the next version.

        Raises:
            RunSupersededError: A later learner drives the run.
            ServiceTakenError: A replica belongs to another run.
            CallError: No replica could be reached, or one refused the push.
            FieldError: A resumed run's first weights are not those of its checkpoint.
        """
        start = time.monotonic()
        if all(replica.fixed for replica in self._replicas):
            return Publication(self._agent, self.version, 0, 0.0, 0.0)
        await self._stop_seeking()
        if self._superseded is not None:
            raise self._superseded
        whole = await asyncio.to_thread(self._encoder.encode, self.version + 1)
        self._check_resumed(whole.header.digest)
        self._seek_lost(whole)
        async with task_group() as group:
            pushes = [
                group.create_task(self._push_or_lose(replica, whole))
                for replica in self._replicas
                if replica.reachable
            ]
        self.version, self._digest = whole.header.version, whole.header.digest
        applied = [done for push in pushes if (done := push.result()) is not None]
        kinds = {done.kind for done in applied}
        return Publication(
            agent=self._agent,
            version=self.version,
            nbytes=sum(done.nbytes for done in applied),
            seconds=time.monotonic() - start,
            pause_seconds=max(done.pause_seconds for done in applied),
            kind=PushKind.FULL if PushKind.FULL in kinds else kinds.pop(),
        )

    async def close(self) -> None:
        """Give up the replicas that could not be reached."""
        await self._stop_seeking()

    async def _stop_seeking(self) -> None:
        """End what is still being pushed: its bytes are about to be those of other weights."""
        for task in self._returning.values():
            task.cancel()
        await asyncio.gather(*self._returning.values(), return_exceptions=True)
        self._returning.clear()

    def _seek_lost(self, whole: Push) -> None:
        """Push to the replicas that could not be reached, beside everything else."""
        for replica in self._replicas:
            if not replica.reachable:
                self._returning[replica.address] = asyncio.create_task(self._seek(replica, whole))

    async def _seek(self, replica: Replica, whole: Push) -> None:
        try:
            await self._push(replica, whole)
        except (CallError, ServiceTakenError) as error:
            logger.warning("%s stays left out: %s", replica.address, error)
        except RunSupersededError as error:
            logger.error("%s: %s", replica.address, error)
            self._superseded = error  # Nobody awaits this task: the next publish says so.
        except Exception:
            logger.exception("%s stays left out: its push failed", replica.address)
        else:
            replica.reachable = True

    async def _push_or_lose(self, replica: Replica, whole: Push) -> _Applied | None:
        try:
            return await self._push(replica, whole)
        except CallError as error:
            lose(replica, self._replicas, error)
            return None

    async def push_again(self, replica: Replica) -> None:
        """Send the published version to a replica that has lost it; the next one where it is due.

        Raises:
            RuntimeError: The weights have moved on since they were published.
        """
        async with self.moving:
            await self._push_published(replica)

    async def _push_published(self, replica: Replica) -> None:
        whole = await asyncio.to_thread(self._encoder.published, self.version)
        if whole.header.digest != self._digest:
            raise RuntimeError(
                f"agent {self._agent}: the weights changed since version {self.version} was "
                f"published, so it cannot be sent again to {replica.address}"
            )
        await self._push(replica, whole)

    def state_dict(self) -> dict[str, Any]:
        """The version that is published, and the digest of its weights."""
        return {"version": self.version, "digest": self._digest.hex()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Publish next what was published last, under the same version."""
        self.version = max(0, state["version"] - 1)
        self._resumed_digest = bytes.fromhex(state["digest"])

    def _check_resumed(self, digest: bytes) -> None:
        wanted, self._resumed_digest = self._resumed_digest, None
        if wanted is not None and digest != wanted:
            raise FieldError(
                f"agents[{self._agent}]",
                f"weights with digest {digest.hex()[:12]}",
                f"{wanted.hex()[:12]}, as published when the checkpoint was written; what is not "
                "trained is not in the checkpoint and must be that of the run's first model",
            )

    async def _push(self, replica: Replica, whole: Push) -> _Applied:
        """Bring one replica to a version, by what it lacks as far as is known, or by all."""
        pushes, refusals = self._path(replica, whole), 0
        while True:
            try:
                return await self._send(replica, pushes)
            except CallError as error:
                refusals += 1
                pushes = await self._instead(replica, whole, pushes, error, last=refusals > 1)

    def _path(self, replica: Replica, whole: Push) -> list[Push]:
        if PushKind.DELTA not in replica.push_kinds:
            return [whole]
        return self._encoder.path(replica.acknowledged, whole)

    async def _instead(
        self, replica: Replica, whole: Push, pushes: list[Push], error: CallError, *, last: bool
    ) -> list[Push]:
        """What to send where these pushes were refused; `last` for all of it."""
        kind = pushes[0].header.kind
        if kind is PushKind.DELTA and error.reason in _NOT_FROM_THIS_BASE:
            replica.acknowledged = LoadedWeights() if last else _told(error)
            return self._path(replica, whole)
        if kind is PushKind.ADAPTER and error.reason == "PUSH_BASE_MISMATCH" and whole.whole:
            return [await asyncio.to_thread(whole.whole)]
        return raise_explained(error, self._identity, self._agent)

    async def _send(self, replica: Replica, pushes: list[Push]) -> _Applied:
        """Send pushes in order; each is applied when the next one begins."""
        pause = 0.0
        for push in pushes:
            header = push.header
            result = await replica.client.push_weights(header, push.read, timeout=self._timeout)
            if (result.weights_version, result.digest) != (header.version, header.digest):
                raise ContractError(
                    replica.address,
                    "PushWeights",
                    f"got version {result.weights_version} with digest {result.digest.hex()[:12]} "
                    f"as applied, wanted version {header.version} with {header.digest.hex()[:12]}, "
                    "as pushed",
                )
            replica.acknowledged = LoadedWeights(
                self._identity.run_id, self._identity.incarnation, header.version, header.digest
            )
            pause += result.pause_seconds
        return _Applied(pushes[-1].header.kind, sum(push.nbytes for push in pushes), pause)


def _told(error: CallError) -> LoadedWeights:
    """What a replica says it has loaded, in refusing a push; nothing where it does not say."""
    try:
        version = int(error.metadata["loaded_version"])
        digest = bytes.fromhex(error.metadata["loaded_digest"])
    except (KeyError, ValueError):
        return LoadedWeights()
    return LoadedWeights(version=version, digest=digest)
