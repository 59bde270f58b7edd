"""One agent's weights as pushes: whole, as what changed, or as a LoRA adapter.

Of an agent with an adapter only the adapter is sent, in a push of kind ADAPTER; a replica that
lacks its base gets base and adapter together, in one of kind FULL. Both have the same digest, that
of all tensors. The base is frozen and is encoded once more only then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from antiphon.clients.digest import tensor_checksum, weights_digest
from antiphon.clients.types import LoadedWeights, PushHeader, PushKind, TensorSpec
from antiphon.learner.weights.published import Published, Step
from antiphon.learner.weights.replicas import RunIdentity
from antiphon.learner.weights.wire_weights import WireWeights
from antiphon.services.common.lora import adapter_dtype, is_adapter_tensor

Read = Callable[[int], memoryview]
"""Gives the bytes of a push's tensor, or of its encoded change, by index."""


class MovedOnError(Exception):
    """What a push brings is no longer here: the weights have moved on since it was made."""


@dataclass(frozen=True)
class Push:
    """A push, whose tensors are read one at a time.

    `reader` None says that its bytes are in a store alone. `whole` makes the push of all tensors,
    where this one is of an adapter alone.
    """

    header: PushHeader
    reader: Read | None
    whole: Callable[[], Push] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of weights that it brings."""
        return sum(self.header.sizes)

    def read(self, index: int) -> memoryview:
        """The bytes of the tensor with this index, or of its encoded change.

        Raises:
            MovedOnError: They are no longer here.
        """
        if self.reader is None:
            raise MovedOnError(f"version {self.header.version} is in the weights store alone")
        return self.reader(index)


class WeightsEncoder:
    """Makes pushes of one agent's weights.

    Args:
        identity: The run that publishes.
        agent: Whose weights these are, counted from 0.
        weights: Theirs.
        deltas: Keep what was encoded last, so that what changes can be sent alone.
    """

    def __init__(
        self, identity: RunIdentity, agent: int, weights: WireWeights, *, deltas: bool
    ) -> None:
        self._identity = identity
        self._agent = agent
        self._weights = weights
        self._published = Published(weights) if deltas else None
        self._base: tuple[TensorSpec, ...] = ()
        self._encoding = threading.RLock()
        """Held while weights are kept, or read as they were: threads do both."""

    def encode(self, version: int) -> Push:
        """The present weights as this version. Pushes made before are of no use any more."""
        with self._encoding:
            shapes = self._weights.shapes()
            if any(map(is_adapter_tensor, shapes)):
                return self._adapter(shapes, version)
            if self._published is None:
                specs = self._specs(shapes, shapes)
                return self._push(version, PushKind.FULL, specs, self._reading(specs, {}))
            self._published.take(shapes, version)
            return self.published(version)

    def published(self, version: int) -> Push:
        """What was encoded last as this version, whole; encoded anew where nothing was kept."""
        with self._encoding:
            published = self._published
            if published is None or not published.digest:
                return self.encode(version)
            specs = published.specs
            return self._push(version, PushKind.FULL, specs, self._reading_kept(published))

    def path(self, start: LoadedWeights, push: Push) -> list[Push]:
        """The fewest bytes that bring who has loaded `start` to what `push` brings.

        Either deltas, one for each version that was missed, an empty one where the weights are
        there already; or `push` itself.
        """
        published = self._published
        if published is None or push.header.kind is not PushKind.FULL or not start.digest:
            return [push]
        if start.digest == push.header.digest:
            specs = push.header.tensors
            nothing = (b"",) * len(specs)
            step = Step(start.digest, push.header.version, start.digest, specs, nothing)
            return [self._delta(step, start.version)]
        pushes: list[Push] = []
        while start.digest != push.header.digest:
            found = published.step_from(start.digest)
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
        return Push(header, lambda index: memoryview(step.changes[index]))

    def _adapter(self, shapes: Mapping[str, tuple[int, ...]], version: int) -> Push:
        names = [name for name in shapes if is_adapter_tensor(name)]
        if not self._base:
            self._base = self._specs(shapes, [name for name in shapes if name not in names])
        # Copied, so that a push of all tensors that comes later is of this version all the same.
        held = {name: memoryview(bytes(self._weights.present(name))) for name in names}
        adapter = tuple(self._spec(name, shapes[name], held[name]) for name in names)

        def whole() -> Push:
            specs = sorted((*self._base, *adapter), key=lambda spec: spec.name)
            return self._push(version, PushKind.FULL, specs, self._reading(specs, held))

        read = self._reading(adapter, held)
        return self._push(version, PushKind.ADAPTER, adapter, read, base=self._base, whole=whole)

    def _push(
        self,
        version: int,
        kind: PushKind,
        specs: Sequence[TensorSpec],
        read: Read,
        *,
        base: tuple[TensorSpec, ...] = (),
        whole: Callable[[], Push] | None = None,
    ) -> Push:
        header = PushHeader(
            run_id=self._identity.run_id,
            incarnation=self._identity.incarnation,
            agent=self._agent,
            version=version,
            digest=weights_digest((*base, *specs)),
            kind=kind,
            tensors=tuple(specs),
            base_digest=weights_digest(base) if base else b"",
        )
        return Push(header, read, whole)

    def _specs(
        self, shapes: Mapping[str, tuple[int, ...]], names: Iterable[str]
    ) -> tuple[TensorSpec, ...]:
        """Of present tensors, looked at one at a time."""
        return tuple(self._spec(n, shapes[n], self._weights.present(n)) for n in names)

    def _spec(self, name: str, shape: tuple[int, ...], buffer: memoryview) -> TensorSpec:
        dtype = adapter_dtype(name, self._weights.dtype)
        return TensorSpec(name, dtype, shape, tensor_checksum(buffer))

    def _reading(self, specs: Sequence[TensorSpec], held: Mapping[str, memoryview]) -> Read:
        """Reads what is held here, and the present weights as long as they are those."""

        def read(index: int) -> memoryview:
            spec = specs[index]
            if spec.name in held:
                return held[spec.name]
            with self._encoding:
                buffer = self._weights.present(spec.name)
            if tensor_checksum(buffer) != spec.checksum:
                raise MovedOnError(f"{spec.name} is no longer what the push says")
            return buffer

        return read

    def _reading_kept(self, published: Published) -> Read:
        """Reads the weights that are published now, until others are."""
        digest, specs = published.digest, published.specs

        def read(index: int) -> memoryview:
            with self._encoding:
                if published.digest != digest:
                    raise MovedOnError(f"{specs[index].name} has been published anew")
                return self._weights.kept(specs[index].name)

        return read
