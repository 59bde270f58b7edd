"""One agent's weights as pushes: whole, as what changed, or as a LoRA adapter.

Of an agent with an adapter only the adapter is sent, in a push of kind ADAPTER; a replica that
lacks its base gets base and adapter together, in one of kind FULL. Both have the same digest, that
of all tensors. The base is frozen and is encoded once more only then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from antiphon.clients.digest import tensor_checksum, weights_digest
from antiphon.clients.types import (
    LoadedWeights,
    PushHeader,
    PushKind,
    TensorDtype,
    TensorSpec,
)
from antiphon.learner.weights.replicas import RunIdentity
from antiphon.learner.weights.wire_copy import Step, WireCopy
from antiphon.services.common.lora import adapter_dtype, is_adapter_tensor
from antiphon.services.common.tensors import to_bytes


@dataclass(frozen=True)
class Push:
    """A push. `whole` makes that of all tensors, where this one is of an adapter alone."""

    header: PushHeader
    buffers: tuple[bytes | memoryview, ...]
    whole: Callable[[], Push] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of weights that it brings."""
        return sum(self.header.sizes)

    def read(self, index: int) -> memoryview:
        """The bytes of the tensor with this index, or of its encoded change."""
        return memoryview(self.buffers[index])


class WeightsEncoder:
    """Makes pushes of one agent's weights.

    Args:
        identity: The run that publishes.
        agent: Whose weights these are, counted from 0.
        tensors: The weights as they are on the wire, by name; read at every `encode`.
        dtype: Their number format on the wire.
        deltas: Keep what was encoded last, so that what changes can be sent alone.
    """

    def __init__(
        self,
        identity: RunIdentity,
        agent: int,
        tensors: Callable[[], Mapping[str, Tensor]],
        dtype: TensorDtype,
        *,
        deltas: bool,
    ) -> None:
        self._identity = identity
        self._agent = agent
        self._tensors = tensors
        self._dtype = dtype
        self._copy = WireCopy(dtype) if deltas else None
        self._base: tuple[TensorSpec, ...] = ()

    def encode(self, version: int) -> Push:
        """The present weights as this version. Pushes made before are of no use any more."""
        tensors = self._tensors()
        if any(map(is_adapter_tensor, tensors)):
            return self._adapter(tensors, version)
        if self._copy is None:
            return self._push(version, PushKind.FULL, self._parts(tensors))
        self._copy.update(tensors, version)
        return self.published(version)

    def published(self, version: int) -> Push:
        """What was encoded last as this version, whole; encoded anew where nothing was kept."""
        copy = self._copy
        if copy is None or not copy.digest:
            return self.encode(version)
        parts = list(zip(copy.specs, copy.buffers(), strict=True))
        return self._push(version, PushKind.FULL, parts)

    def path(self, start: LoadedWeights, push: Push) -> list[Push]:
        """The fewest bytes that bring who has loaded `start` to what `push` brings.

        Either deltas, one for each version that was missed, an empty one where the weights are
        there already; or `push` itself.
        """
        if self._copy is None or push.header.kind is not PushKind.FULL or not start.digest:
            return [push]
        if start.digest == push.header.digest:
            nothing = tuple(b"" for _ in push.buffers)
            step = Step(start.digest, push.header.version, start.digest, self._copy.specs, nothing)
            return [self._delta(step, start.version)]
        pushes: list[Push] = []
        while start.digest != push.header.digest:
            found = self._copy.step_from(start.digest)
            if found is None:
                return [push]
            pushes.append(self._delta(found, start.version))
            start = LoadedWeights(version=found.version, digest=found.digest)
        return pushes if sum(delta.nbytes for delta in pushes) < push.nbytes else [push]

    def _delta(self, step: Step, base_version: int) -> Push:
        header = PushHeader(
            run_id=self._identity.run_id,
            incarnation=self._identity.incarnation,
            agent=self._agent,
            version=step.version,
            digest=step.digest,
            kind=PushKind.DELTA,
            tensors=step.specs,
            base_version=base_version,
            base_digest=step.base_digest,
            delta_sizes=tuple(map(len, step.changes)),
        )
        return Push(header, step.changes)

    def _adapter(self, tensors: Mapping[str, Tensor], version: int) -> Push:
        adapter = {name: t for name, t in tensors.items() if is_adapter_tensor(name)}
        base = {name: t for name, t in tensors.items() if name not in adapter}
        if not self._base:
            self._base = tuple(spec for spec, _ in self._parts(base))
        # Copied, so that a push of all tensors that comes later is of this version all the same.
        parts = [(spec, memoryview(bytes(buffer))) for spec, buffer in self._parts(adapter)]
        return self._push(
            version,
            PushKind.ADAPTER,
            parts,
            base=self._base,
            whole=lambda: self._push(version, PushKind.FULL, [*self._parts(base), *parts]),
        )

    def _push(
        self,
        version: int,
        kind: PushKind,
        parts: Sequence[tuple[TensorSpec, memoryview]],
        *,
        base: tuple[TensorSpec, ...] = (),
        whole: Callable[[], Push] | None = None,
    ) -> Push:
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
        return Push(header, tuple(buffer for _, buffer in ordered), whole)

    def _parts(self, tensors: Mapping[str, Tensor]) -> list[tuple[TensorSpec, memoryview]]:
        parts = []
        for name, tensor in tensors.items():
            dtype = adapter_dtype(name, self._dtype)
            buffer = to_bytes(tensor, dtype)
            spec = TensorSpec(name, dtype, tuple(tensor.shape), tensor_checksum(buffer))
            parts.append((spec, buffer))
        return parts
