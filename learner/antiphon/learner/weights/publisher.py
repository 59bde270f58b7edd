"""Publishes one agent's weights to its replicas: encoded once, each replica on its own channel.

A version counts as published when every reachable replica has said that it applied it. A replica
that lost its weights is sent the present version again. One that cannot be reached holds up nobody:
where others are left the run goes on without it, every publish tries it again beside the others,
and once a push reaches it, it takes its share again.

Of an agent with a LoRA adapter only the adapter is sent, in a push of kind ADAPTER; a replica that
lacks its base (PUSH_BASE_MISMATCH) gets base and adapter together, in one of kind FULL. Both have
the same digest, that of all tensors. The base is frozen and is encoded once more only then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from antiphon.clients.digest import tensor_checksum, weights_digest
from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.types import (
    FieldError,
    LoadedWeights,
    PushHeader,
    PushKind,
    TensorDtype,
    TensorSpec,
)
from antiphon.learner.concurrency import task_group
from antiphon.learner.weights.replicas import (
    Replica,
    RunIdentity,
    RunSupersededError,
    ServiceTakenError,
    lose,
    raise_explained,
)
from antiphon.services.common.lora import adapter_dtype, is_adapter_tensor
from antiphon.services.common.tensors import to_bytes

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Publication:
    """A version that every reachable replica has applied.

    `nbytes` is what went to these replicas together, `seconds` from encoding to the last answer,
    `pause_seconds` the longest time in which a replica could not generate.
    """

    agent: int
    version: int
    nbytes: int
    seconds: float
    pause_seconds: float


@dataclass(frozen=True)
class _Encoded:
    """A push. `whole` makes that of all tensors, where this one is of an adapter alone."""

    header: PushHeader
    buffers: tuple[memoryview, ...]
    whole: Callable[[], _Encoded] | None = None

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers)


class AgentPublisher:
    """Counts and sends the versions of one agent's weights.

    Args:
        identity: The run that publishes.
        agent: Whose weights these are, counted from 0.
        tensors: The weights as they are on the wire, by name; read at every publish.
        dtype: Their number format on the wire.
        replicas: The agent's processes, one at least.
        timeout: Seconds per push and replica.
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
    ) -> None:
        self._identity = identity
        self._agent = agent
        self._tensors = tensors
        self._dtype = dtype
        self._replicas = replicas
        self._timeout = timeout
        self._base: tuple[TensorSpec, ...] = ()
        self._digest = b""
        self._resumed_digest: bytes | None = None
        self.version = 0
        """The version that every reachable replica has applied; 0 before the first publish."""
        self._returning: dict[str, asyncio.Task[None]] = {}
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
        encoded = await asyncio.to_thread(self._encode, self.version + 1)
        self._check_resumed(encoded.header.digest)
        self._seek_lost(encoded)
        async with task_group() as group:
            pushes = [
                group.create_task(self._push_or_lose(replica, encoded))
                for replica in self._replicas
                if replica.reachable
            ]
        self.version, self._digest = encoded.header.version, encoded.header.digest
        applied = [done for push in pushes if (done := push.result()) is not None]
        return Publication(
            agent=self._agent,
            version=self.version,
            nbytes=sum(nbytes for nbytes, _ in applied),
            seconds=time.monotonic() - start,
            pause_seconds=max(pause for _, pause in applied),
        )

    async def close(self) -> None:
        """Give up the replicas that could not be reached."""
        for task in self._returning.values():
            task.cancel()
        await asyncio.gather(*self._returning.values(), return_exceptions=True)

    def _seek_lost(self, encoded: _Encoded) -> None:
        """Push to the replicas that could not be reached, beside everything else."""
        for replica in self._replicas:
            if replica.reachable:
                continue
            if earlier := self._returning.pop(replica.address, None):
                earlier.cancel()
            self._returning[replica.address] = asyncio.create_task(self._seek(replica, encoded))

    async def _seek(self, replica: Replica, encoded: _Encoded) -> None:
        try:
            await self._push(replica, encoded)
        except (CallError, RunSupersededError, ServiceTakenError) as error:
            logger.warning("%s stays left out: %s", replica.address, error)
        else:
            replica.reachable = True

    async def _push_or_lose(self, replica: Replica, encoded: _Encoded) -> tuple[int, float] | None:
        try:
            return await self._push(replica, encoded)
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
        encoded = await asyncio.to_thread(self._encode, self.version)
        if encoded.header.digest != self._digest:
            raise RuntimeError(
                f"agent {self._agent}: the weights changed since version {self.version} was "
                f"published, so it cannot be sent again to {replica.address}"
            )
        await self._push(replica, encoded)

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

    def _encode(self, version: int) -> _Encoded:
        tensors = self._tensors()
        adapter = {name: t for name, t in tensors.items() if is_adapter_tensor(name)}
        if not adapter:
            return self._encoded(version, PushKind.FULL, self._parts(tensors))
        base = {name: t for name, t in tensors.items() if name not in adapter}
        if not self._base:
            self._base = tuple(spec for spec, _ in self._parts(base))
        # Copied, so that a push of all tensors that comes later is of this version all the same.
        parts = [(spec, memoryview(bytes(buffer))) for spec, buffer in self._parts(adapter)]
        return self._encoded(
            version,
            PushKind.ADAPTER,
            parts,
            base=self._base,
            whole=lambda: self._encoded(version, PushKind.FULL, [*self._parts(base), *parts]),
        )

    def _encoded(
        self,
        version: int,
        kind: PushKind,
        parts: Sequence[tuple[TensorSpec, memoryview]],
        *,
        base: tuple[TensorSpec, ...] = (),
        whole: Callable[[], _Encoded] | None = None,
    ) -> _Encoded:
        ordered = sorted(parts, key=lambda part: part[0].name)
        specs = tuple(spec for spec, _ in ordered)
        header = PushHeader(
            run_id=self._identity.run_id,
            incarnation=self._identity.incarnation,
            agent=self._agent,
            version=version,
            digest=weights_digest((*base, *specs)),
            kind=kind,
            tensors=specs,
            base_digest=weights_digest(base) if base else b"",
        )
        return _Encoded(header, tuple(buffer for _, buffer in ordered), whole)

    def _parts(self, tensors: Mapping[str, Tensor]) -> list[tuple[TensorSpec, memoryview]]:
        parts = []
        for name, tensor in tensors.items():
            dtype = adapter_dtype(name, self._dtype)
            buffer = to_bytes(tensor, dtype)
            spec = TensorSpec(name, dtype, tuple(tensor.shape), tensor_checksum(buffer))
            parts.append((spec, buffer))
        return parts

    async def _push(self, replica: Replica, encoded: _Encoded) -> tuple[int, float]:
        """Push to one replica; returns bytes, and the seconds in which it could not generate."""
        header = encoded.header
        try:
            result = await replica.client.push_weights(
                header, encoded.buffers.__getitem__, timeout=self._timeout
            )
        except CallError as error:
            if error.reason == "PUSH_BASE_MISMATCH" and encoded.whole is not None:
                return await self._push(replica, await asyncio.to_thread(encoded.whole))
            raise_explained(error, self._identity, self._agent)
        if (result.weights_version, result.digest) != (header.version, header.digest):
            raise ContractError(
                replica.address,
                "PushWeights",
                f"got version {result.weights_version} with digest {result.digest.hex()[:12]} as "
                f"applied, wanted version {header.version} with {header.digest.hex()[:12]}, as "
                "pushed",
            )
        replica.acknowledged = LoadedWeights(
            self._identity.run_id, self._identity.incarnation, header.version, header.digest
        )
        return encoded.nbytes, result.pause_seconds
