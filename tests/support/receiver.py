"""A replica without a connection: takes what a publisher sends, and holds it against its header."""

from __future__ import annotations

from antiphon.clients.digest import tensor_checksum, weights_digest
from antiphon.clients.types import LoadedWeights, PushKind
from antiphon.learner.weights.encoding import Push, WeightsEncoder
from antiphon.learner.weights.replicas import RunIdentity
from antiphon.learner.weights.wire_weights import WireWeights
from antiphon.services.common.changes import decode_change, patterns


class Receiver:
    """Is published to, version after version.

    Args:
        weights: What is published.

    Attributes:
        tensors: What has been received, by name.
        kinds: Of each push.
    """

    def __init__(self, weights: WireWeights) -> None:
        self._encoder = WeightsEncoder(RunIdentity("run", 1), 0, weights, deltas=True)
        self._loaded = LoadedWeights()
        self._version = 0
        self.tensors: dict[str, bytearray] = {}
        self.kinds: list[str] = []

    def publish(self) -> None:
        """Take the present weights, as the next version."""
        self._version += 1
        made = self._encoder.encode(self._version)
        if made.whole is not None and not self.tensors:
            made = made.whole()
        for push in self._encoder.path(self._loaded, made):
            self._apply(push)
            self.kinds.append(push.header.kind.value)

    def join(self) -> None:
        """As another replica, take all of what is published, whatever the weights are by now."""
        push = self._encoder.published(self._version)
        if push.header.kind is PushKind.FULL:
            assert push.header.digest == self._loaded.digest
            assert {s.name: push.read(i) for i, s in enumerate(push.header.tensors)} == self.tensors

    def _apply(self, push: Push) -> None:
        header = push.header
        for index, spec in enumerate(header.tensors):
            data = push.read(index)
            if header.kind is PushKind.DELTA:
                assert data.nbytes == header.delta_sizes[index]
                held = patterns(self.tensors[spec.name], spec.dtype)
                positions, values = decode_change(data, held)
                held[positions] = values
            else:
                self.tensors[spec.name] = bytearray(data)
            assert tensor_checksum(self.tensors[spec.name]) == spec.checksum
        if header.kind is not PushKind.ADAPTER:
            assert weights_digest(header.tensors) == header.digest
        self._loaded = LoadedWeights("run", 1, header.version, header.digest)
