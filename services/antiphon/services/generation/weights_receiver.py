"""Takes pushes: stages, verifies, then has the engine swap."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

import grpc

from antiphon.clients.digest import weights_digest
from antiphon.clients.types import (
    FieldError,
    LoadedWeights,
    PushHeader,
    PushKind,
    PushResult,
    PushState,
    PushStatus,
    StoredChunks,
    TensorSpec,
    WeightsChunk,
)
from antiphon.clients.wire import PushQuery
from antiphon.services.common.errors import ServiceError
from antiphon.services.common.lora import is_adapter_tensor
from antiphon.services.common.memory import give_back_freed_memory
from antiphon.services.common.tensors import check_names_and_shapes
from antiphon.services.common.weights_store import WeightsStore
from antiphon.services.generation.binding import Binding, PushDecision
from antiphon.services.generation.delta import check_delta, decode_delta
from antiphon.services.generation.engine import ChangeableEngine, Engine
from antiphon.services.generation.metrics import GenerationMetrics, generation_metrics
from antiphon.services.generation.staging import Staging
from antiphon.services.generation.stored_chunks import StoredReader

logger = logging.getLogger(__name__)

Part = PushHeader | WeightsChunk | StoredChunks
_Sent = PushHeader | WeightsChunk


def _identity(push: PushHeader | PushQuery) -> LoadedWeights:
    """What is loaded once the push is applied; tells one push from another."""
    return LoadedWeights(push.run_id, push.incarnation, push.version, push.digest)


@dataclass(slots=True)
class _Stream:
    """One PushWeights call that brings chunks."""

    replaced: asyncio.Event = field(default_factory=asyncio.Event)


class WeightsReceiver:
    """Receives pushes for one engine. One push is staged at a time, one is applied at a time.

    Args:
        engine: Whose weights are replaced.
        binding: Says who may push what.
        instance_id: Of this replica, for the answer.
        boot_id: Of this process, for the answer.
        metrics: Where it counts.
        store: Where it reads the chunks of pushes that say that they are stored; None for nowhere.
    """

    def __init__(
        self,
        engine: Engine,
        binding: Binding,
        *,
        instance_id: str,
        boot_id: str,
        metrics: GenerationMetrics | None = None,
        store: WeightsStore | None = None,
    ) -> None:
        self._stored = StoredReader(store)
        self._engine = engine
        self._binding = binding
        self._instance_id = instance_id
        self._boot_id = boot_id
        self._metrics = metrics or generation_metrics()
        self._staging: Staging | None = None
        self._stream: _Stream | None = None
        self._applying: tuple[LoadedWeights, asyncio.Task[float]] | None = None

    async def push(self, parts: AsyncIterator[Part]) -> PushResult:
        """Takes one stream of a push and answers once the push is applied.

        A stream that breaks leaves what it brought for the next one. A second stream of a push
        replaces the first. Where the push is applied or being applied already, chunks are not
        asked for.

        Raises:
            FieldError: The parts do not fit the contract or the model.
            ServiceError: With the reasons of `Binding.admit_push`, FEATURE_UNAVAILABLE,
                PUSH_CHECKSUM_MISMATCH or PUSH_REPLACED.
        """
        began = time.perf_counter()
        kind, outcome = "unknown", "failed"
        try:
            header = await anext(parts, None)
            if not isinstance(header, PushHeader):
                came = "nothing" if header is None else "a chunk"
                raise FieldError("part", came, "the push's header first")
            kind = header.kind.name.lower()
            result = await self._push(header, parts)
            outcome = "applied"
        finally:
            self._metrics.pushes.labels(kind, outcome).inc()
        self._metrics.push.labels(kind).observe(time.perf_counter() - began)
        return result

    async def _push(self, header: PushHeader, parts: AsyncIterator[Part]) -> PushResult:
        self._check_header(header)
        wanted = _identity(header)
        decision = self._admit(header)
        with self._binding.call(header.run_id):
            while self._applying is not None and self._applying[0] != wanted:
                await asyncio.wait({self._applying[1]})
                decision = self._admit(header)
            if decision is PushDecision.ALREADY_APPLIED:
                return self._result(header, 0.0)
            if self._applying is None:
                staging = self._stage(header)
                received = staging.received_bytes
                await self._receive(staging, self._stored.chunks(parts, header, received))
                self._begin_apply(staging)
                del staging  # Its memory is to end with the swap.
            assert self._applying is not None
            return self._result(header, await asyncio.shield(self._applying[1]))

    def status(self, query: PushQuery) -> PushStatus:
        """How far a push has come."""
        wanted = _identity(query)
        loaded = self._engine.loaded
        if wanted == loaded:
            return PushStatus(PushState.APPLIED, (), loaded)
        if self._applying is not None and self._applying[0] == wanted:
            return PushStatus(PushState.APPLYING, (), loaded)
        staging = self._staging
        if staging and (_identity(staging.header), staging.header.kind) == (wanted, query.kind):
            return PushStatus(PushState.STAGED, staging.received_bytes, loaded)
        return PushStatus(PushState.UNKNOWN, (), loaded)

    def _check_header(self, header: PushHeader) -> None:
        kinds = self._engine.info.capabilities.push_kinds
        if header.kind not in kinds:
            feature = f"{header.kind.name} push"
            offered = ", ".join(sorted(kind.name for kind in kinds))
            wanted = (
                f"wanted one of: {offered}" if kinds else "wanted no push: the weights are fixed"
            )
            raise ServiceError(
                grpc.StatusCode.UNIMPLEMENTED,
                f"header.kind: got {header.kind.name}, {wanted}; this engine does not offer the "
                f"feature '{feature}'",
                reason="FEATURE_UNAVAILABLE",
                metadata={"feature": feature},
            )
        adapter = header.tensors
        if header.kind in (PushKind.FULL, PushKind.DELTA):
            adapter = tuple(spec for spec in header.tensors if is_adapter_tensor(spec.name))
            own = [spec for spec in header.tensors if not is_adapter_tensor(spec.name)]
            if adapter and header.kind is PushKind.DELTA:
                raise FieldError(
                    "header.tensors",
                    f"the adapter's {adapter[0].name!r} in a DELTA",
                    "the model's own tensors alone; push an adapter as ADAPTER or FULL",
                )
            check_names_and_shapes(
                self._engine.tensor_shapes,
                ((spec.name, spec.shape) for spec in own),
                "header.tensors",
            )
            _check_digest(header, header.tensors, "that of header.tensors")
        self._engine.check_adapter(adapter, "header.tensors")

    def _admit(self, header: PushHeader) -> PushDecision:
        """Lets a push in, its result being what the header says; or says why not."""
        base = self._engine.base
        digest = weights_digest(base) if base else b""
        decision = self._binding.admit_push(self._engine.loaded, header, base_digest=digest)
        if header.kind is PushKind.ADAPTER:
            _check_digest(
                header, (*base, *header.tensors), "that of the loaded base and header.tensors"
            )
        if header.kind is PushKind.DELTA and decision is PushDecision.TAKE:
            check_delta(header, base)
        return decision

    def _stage(self, header: PushHeader) -> Staging:
        """The staging of this push, with what earlier streams of it brought."""
        if self._stream is not None:
            self._stream.replaced.set()
        if self._staging is None or self._staging.header != header:
            self._staging = None
            self._staging = Staging(header)
        return self._staging

    async def _receive(self, staging: Staging, parts: AsyncIterator[_Sent]) -> None:
        stream = self._stream = _Stream()
        replaced = asyncio.create_task(stream.replaced.wait())
        reading = asyncio.create_task(self._read(staging, parts))
        try:
            await asyncio.wait({reading, replaced}, return_when=asyncio.FIRST_COMPLETED)
            if stream.replaced.is_set() and not _succeeded(reading):
                raise ServiceError(
                    grpc.StatusCode.ABORTED,
                    "a newer stream has replaced this push's",
                    reason="PUSH_REPLACED",
                )
            reading.result()
        finally:
            replaced.cancel()
            reading.cancel()
            _succeeded(reading)  # Its failure counts as seen where a newer stream is what is told.
            if self._stream is stream:
                self._stream = None

    async def _read(self, staging: Staging, parts: AsyncIterator[_Sent]) -> None:
        while not staging.complete:
            part: _Sent | None = await anext(parts, None)
            self._take(staging, part)

    def _take(self, staging: Staging, part: _Sent | None) -> None:
        if isinstance(part, WeightsChunk):
            self._metrics.push_bytes.labels(staging.header.kind.value).inc(staging.add(part))
            return
        if isinstance(part, PushHeader):
            raise FieldError("part", "a second header", "chunks after the header")
        total = sum(staging.header.sizes)
        raise FieldError(
            "part",
            f"the end after {sum(staging.received_bytes)} of {total} bytes",
            "all of them; ask GetPushStatus what is missing and send that",
        )

    def _begin_apply(self, staging: Staging) -> None:
        header = staging.header
        self._binding.check_current(header.run_id, header.incarnation)
        self._staging = None
        task = asyncio.create_task(self._apply(staging))
        # Whoever asked may be gone when it fails; the log still says so.
        task.add_done_callback(_log_failure)
        self._applying = (_identity(header), task)

    async def _apply(self, staging: Staging) -> float:
        loaded = _identity(staging.header)
        try:
            pause = await self._swap(staging, loaded)
        finally:
            self._applying = None
            kind = staging.header.kind.value
            del staging
            asyncio.get_running_loop().run_in_executor(None, give_back_freed_memory)
        self._metrics.push_pause.labels(kind).observe(pause)
        logger.info(
            "weights version %d of run %s applied, pause %.3f s",
            loaded.version,
            loaded.run_id,
            pause,
        )
        return pause

    async def _swap(self, staging: Staging, loaded: LoadedWeights) -> float:
        engine, header = self._engine, staging.header
        if header.kind is not PushKind.DELTA:
            return await engine.apply(staging.tensors(), loaded)
        assert isinstance(engine, ChangeableEngine)  # It offers the kind.
        changes = await asyncio.to_thread(decode_delta, engine, staging.tensors())
        return await engine.change(changes, header.tensors, loaded)

    def _result(self, header: PushHeader, pause_seconds: float) -> PushResult:
        return PushResult(
            weights_version=header.version,
            digest=header.digest,
            instance_id=self._instance_id,
            boot_id=self._boot_id,
            pause_seconds=pause_seconds,
        )


def _check_digest(header: PushHeader, tensors: Iterable[TensorSpec], what: str) -> None:
    computed = weights_digest(tensors)
    if computed != header.digest:
        raise FieldError("header.digest", header.digest.hex(), f"{computed.hex()}, {what}")


def _succeeded(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _log_failure(task: asyncio.Task[float]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("applying a push failed: %s", error)
