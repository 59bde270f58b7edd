"""A service that keeps what it is pushed, and a publisher that pushes to such services."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import torch

from antiphon.clients.errors import CallError
from antiphon.clients.types import (
    PushHeader,
    PushResult,
    TensorDtype,
)
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import (
    Replica,
    Replicas,
    RunIdentity,
)
from antiphon.learner.weights.wire_weights import OwnWeights

IDENTITY = RunIdentity("run-1", 3)


@dataclass
class Receiver:
    """Takes pushes whole, or fails with `error`; `lies` about the version that it applied."""

    address: str = "a:1"
    error: CallError | None = None
    lies: bool = False
    pushes: list[tuple[PushHeader, dict[str, bytes]]] = field(default_factory=list)

    async def push_weights(
        self,
        header: PushHeader,
        read_tensor: Callable[[int], memoryview],
        *,
        timeout: float,
    ) -> PushResult:
        if self.error is not None:
            raise self.error
        tensors = {
            spec.name: bytes(read_tensor(index)) for index, spec in enumerate(header.tensors)
        }
        self.pushes.append((header, tensors))
        version = header.version - 1 if self.lies else header.version
        return PushResult(version, header.digest, "i", "b", pause_seconds=0.25)


def failure(reason: str, **metadata: str) -> CallError:
    return CallError(
        grpc.StatusCode.FAILED_PRECONDITION,
        "no",
        address="a:1",
        rpc="PushWeights",
        reason=reason,
        metadata=metadata,
    )


def publisher(
    tensors: dict[str, torch.Tensor],
    *receivers: Receiver,
    dtype: TensorDtype = TensorDtype.BFLOAT16,
) -> tuple[AgentPublisher, Replicas]:
    replicas = Replicas(Replica(r.address, r) for r in receivers)  # type: ignore[arg-type]
    weights = OwnWeights(lambda: tensors, dtype)
    return AgentPublisher(IDENTITY, 1, weights, replicas, timeout=5), replicas
