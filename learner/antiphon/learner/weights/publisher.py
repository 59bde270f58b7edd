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
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.types import FieldError, LoadedWeights, PushKind, PushResult
from antiphon.learner.concurrency import log_failure, task_group
from antiphon.learner.weights.encoding import MovedOnError, Push, WeightsEncoder
from antiphon.learner.weights.replicas import (
    Replica,
    Replicas,
    RunIdentity,
    RunSupersededError,
    ServiceTakenError,
    raise_explained,
)
from antiphon.learner.weights.stored import StoredPushes
from antiphon.learner.weights.wire_weights import WireWeights
from antiphon.services.common.weights_store import WeightsStore

logger = logging.getLogger(__name__)

_NOT_FROM_THIS_BASE = frozenset({"PUSH_BASE_MISMATCH", "PUSH_CHECKSUM_MISMATCH"})
"""Why a delta is refused that all tensors would be taken instead of."""
_NOT_THIS_ANCHOR = _NOT_FROM_THIS_BASE | {"PUSH_NOT_STORED", "PUSH_VERSION_CONFLICT"}
"""Why a replica cannot come by way of older weights in the store."""


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
        weights: The weights, read at every publish.
        replicas: The agent's processes.
        timeout: Seconds per push and replica.
        deltas: Send what changed where that is less; it takes a copy of the weights on the wire,
            of which whoever holds the weights keeps its part.
        store: Written to once instead of sending to each replica that reads it; None for none.
    """

    def __init__(
        self,
        identity: RunIdentity,
        agent: int,
        weights: WireWeights,
        replicas: Replicas,
        *,
        timeout: float,
        deltas: bool = True,
        store: WeightsStore | None = None,
    ) -> None:
        self._stored = None if store is None else StoredPushes(store, timeout=timeout)
        self._identity = identity
        self._agent = agent
        self._replicas = replicas
        self._timeout = timeout
        self._dtype = weights.dtype
        taken = not replicas or any(replica.takes_deltas(weights.dtype) for replica in replicas)
        self._encoder = WeightsEncoder(identity, agent, weights, deltas=deltas and taken)
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
        if self._replicas and all(replica.fixed for replica in self._replicas):
            return Publication(self._agent, self.version, 0, 0.0, 0.0)
        await self._stop_seeking()
        self.check_superseded()
        whole = await asyncio.to_thread(self._encoder.encode, self.version + 1)
        self._check_resumed(whole.header.digest)
        self._seek_lost(whole)
        async with task_group() as group:
            pushes = [
                group.create_task(self._push_or_lose(replica, whole))
                for replica in self._replicas.live
            ]
        self.version, self._digest = whole.header.version, whole.header.digest
        applied = [done for push in pushes if (done := push.result()) is not None]
        kinds = {done.kind for done in applied} or {whole.header.kind}
        return Publication(
            agent=self._agent,
            version=self.version,
            nbytes=sum(done.nbytes for done in applied) + self._written(),
            seconds=time.monotonic() - start,
            pause_seconds=max((done.pause_seconds for done in applied), default=0.0),
            kind=PushKind.FULL if PushKind.FULL in kinds else kinds.pop(),
        )

    def check_superseded(self) -> None:
        """Raise what a replica said beside everything else.

        Raises:
            RunSupersededError: A later learner drives the run.
        """
        if self._superseded is not None:
            raise self._superseded

    async def close(self) -> None:
        """Give up the replicas that could not be reached."""
        await self._stop_seeking()
        if self._stored is not None:
            await self._stored.close()

    def _written(self) -> int:
        return 0 if self._stored is None else self._stored.take_written()

    async def _stop_seeking(self) -> None:
        """End what is still being pushed: its bytes are about to be those of other weights."""
        for task in self._returning.values():
            task.cancel()
        await asyncio.gather(*self._returning.values(), return_exceptions=True)
        self._returning.clear()

    def _seek_lost(self, whole: Push) -> None:
        """Push to the replicas that could not be reached, beside everything else."""
        for replica in self._replicas:
            if not replica.reachable and replica.serving:
                self._returning[replica.address] = asyncio.create_task(self._seek(replica, whole))

    async def bring(self, replica: Replica) -> None:
        """Bring a replica that joined or came back to the published version, beside all else.

        Returns once it has it, or that failed, which the log tells, or a publish goes on with it.
        """
        published = LoadedWeights(
            self._identity.run_id, self._identity.incarnation, self.version, self._digest
        )
        if replica.fixed or not self._digest or replica.acknowledged == published:
            self._replicas.take_back(replica)
            return
        task = self._returning.get(replica.address)
        if task is None or task.done():
            task = asyncio.create_task(self._bring(replica), name=f"bringing {replica.address}")
            task.add_done_callback(log_failure)
            self._returning[replica.address] = task
        await asyncio.wait({task})

    async def _bring(self, replica: Replica) -> None:
        whole = await asyncio.to_thread(self._encoder.published, self.version)
        if whole.header.digest == self._digest:  # else the weights move: their publish brings it
            await self._seek(replica, whole)

    async def _seek(self, replica: Replica, whole: Push) -> None:
        try:
            await self._push(replica, whole)
        except (CallError, ServiceTakenError) as error:
            replica.trouble = str(error)
            logger.warning("%s stays left out: %s", replica.address, error)
        except MovedOnError as error:
            logger.info("%s gets what is published next: %s", replica.address, error)
        except RunSupersededError as error:
            logger.error("%s: %s", replica.address, error)
            self._superseded = error  # Nobody awaits this task: who goes on next says so.
            self._replicas.tell()
        except Exception:
            logger.exception("%s stays left out: its push failed", replica.address)
        else:
            self._replicas.take_back(replica)

    async def _push_or_lose(self, replica: Replica, whole: Push) -> _Applied | None:
        try:
            return await self._push(replica, whole)
        except CallError as error:
            if replica.reachable:  # else it was let go meanwhile
                self._replicas.lose(replica, error)
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
        replica.pushes += 1
        try:
            while True:
                try:
                    return await self._send(replica, pushes)
                except CallError as error:
                    if await self._replicas.lease_ended(replica, error):
                        continue
                    refusals += 1
                    pushes = await self._instead(replica, whole, pushes, error, last=refusals > 1)
        finally:
            replica.pushes -= 1
            if not replica.reachable:
                self._replicas.tell()

    def _path(self, replica: Replica, whole: Push) -> list[Push]:
        if not replica.takes_deltas(self._dtype):
            return [whole]
        pushes = self._encoder.path(replica.acknowledged, whole)
        if self._stored is None or not replica.reads_store:
            return pushes
        return self._stored.path(pushes, self._encoder)

    async def _instead(
        self, replica: Replica, whole: Push, pushes: list[Push], error: CallError, *, last: bool
    ) -> list[Push]:
        """What to send where these pushes were refused; `last` for all of it."""
        kind = pushes[0].header.kind
        if (
            self._stored is not None
            and pushes[0].reader is None
            and error.reason in _NOT_THIS_ANCHOR
        ):
            await self._stored.forget_anchor(pushes[0].header)  # so all tensors are stored anew
            return [whole]
        if kind is PushKind.DELTA and error.reason in _NOT_FROM_THIS_BASE:
            replica.acknowledged = LoadedWeights() if last else _told(error)
            return self._path(replica, whole)
        if kind is PushKind.ADAPTER and error.reason == "PUSH_BASE_MISMATCH" and whole.whole:
            return [await asyncio.to_thread(whole.whole)]
        return raise_explained(error, self._identity, self._agent)

    async def _send(self, replica: Replica, pushes: list[Push]) -> _Applied:
        """Send pushes in order; each is applied when the next one begins."""
        pause, sent = 0.0, 0
        for push in pushes:
            header = push.header
            result, nbytes = await self._send_one(replica, push)
            sent += nbytes
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
            replica.bound = True
            pause += result.pause_seconds
        return _Applied(pushes[-1].header.kind, sent, pause)

    async def _send_one(self, replica: Replica, push: Push) -> tuple[PushResult, int]:
        """Send a push, or say that it is stored; what was applied, and the bytes sent."""
        stored = None
        if self._stored is not None and replica.reads_store:
            stored = await self._stored.put(push)
        sent = 0

        def read(index: int) -> memoryview:
            nonlocal sent
            if push.reader is None:
                raise CallError(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"version {push.header.version} is no longer held",
                    address=replica.address,
                    rpc="PushWeights",
                    reason="PUSH_NOT_STORED",
                )
            data = push.read(index)
            sent += data.nbytes
            return data

        push_weights = partial(replica.client.push_weights, push.header, timeout=self._timeout)
        if stored is None and push.reader is not None:
            return await push_weights(push.read), push.nbytes
        return await push_weights(read, stored=stored), sent


def _told(error: CallError) -> LoadedWeights:
    """What a replica says it has loaded, in refusing a push; nothing where it does not say."""
    try:
        version = int(error.metadata["loaded_version"])
        digest = bytes.fromhex(error.metadata["loaded_digest"])
    except (KeyError, ValueError):
        return LoadedWeights()
    return LoadedWeights(version=version, digest=digest)
