"""Of an adapted model the adapter is pushed, and all of it to whom lacks the base."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.learner.weights.pushed import Receiver, failure, publisher

from antiphon.clients.digest import weights_digest
from antiphon.clients.errors import CallError
from antiphon.clients.types import (
    PushHeader,
    PushKind,
    PushResult,
    TensorDtype,
)
from antiphon.services.common.tensors import tensor_specs

LAYER = "model.q"
ADAPTED = {
    "model.norm": torch.ones(2),
    f"{LAYER}.lora_A.weight": torch.ones(1, 2),
    f"{LAYER}.lora_B.weight": torch.ones(2, 1),
    f"{LAYER}.lora_scaling": torch.tensor(1.1),
    f"{LAYER}.weight": torch.ones(2, 2),
}
"""In order of name, as it goes over the wire."""


class Baseless(Receiver):
    """Refuses adapters until a whole push has come."""

    async def push_weights(self, header: PushHeader, *args: Any, **options: Any) -> PushResult:
        if header.kind is PushKind.ADAPTER and not self.pushes:
            raise failure("PUSH_BASE_MISMATCH")
        return await super().push_weights(header, *args, **options)


async def test_of_an_adapted_model_the_adapter_alone_is_sent() -> None:
    """Scalings are float32 whatever the wire; the digest is of base and adapter together."""
    receiver = Receiver()
    made, _ = publisher(ADAPTED, receiver)
    published = await made.publish()
    header, sent = receiver.pushes[0]
    assert header.kind is PushKind.ADAPTER
    assert list(sent) == [
        f"{LAYER}.lora_A.weight",
        f"{LAYER}.lora_B.weight",
        f"{LAYER}.lora_scaling",
    ]
    assert [spec.dtype.value for spec in header.tensors] == ["bfloat16", "bfloat16", "float32"]
    assert sent[f"{LAYER}.lora_scaling"] == bytes.fromhex("cdcc8c3f")
    assert published.nbytes == 4 + 4 + 4
    base = {name: t for name, t in ADAPTED.items() if "lora" not in name}
    assert header.base_digest == weights_digest(tensor_specs(base, TensorDtype.BFLOAT16))
    specs = (*tensor_specs(base, TensorDtype.BFLOAT16), *header.tensors)
    assert header.digest == weights_digest(specs)


async def test_a_replica_without_the_base_gets_all_of_it_once() -> None:
    with_base, without = Receiver("a:1"), Baseless("a:2")
    made, replicas = publisher(ADAPTED, with_base, without)
    first = await made.publish()
    assert [header.kind for header, _ in with_base.pushes] == [PushKind.ADAPTER]
    (whole, sent), *_ = without.pushes
    assert (whole.kind, list(sent)) == (PushKind.FULL, sorted(ADAPTED))
    assert whole.digest == with_base.pushes[0][0].digest
    assert first.nbytes == 12 + (12 + 4 + 8)
    second = await made.publish()
    assert without.pushes[1][0].kind is PushKind.ADAPTER
    assert second.nbytes == 2 * 12
    without.pushes.clear()
    await made.push_again(replicas[1])
    assert without.pushes[0][0].kind is PushKind.FULL
    assert without.pushes[0][0].version == 2


@pytest.mark.parametrize("dtype", list(TensorDtype))
async def test_base_and_adapter_are_of_one_version_though_the_adapter_moves_meanwhile(
    dtype: TensorDtype,
) -> None:
    """The base is asked for after a step has changed the adapter in place."""
    tensors = {name: tensor.clone() for name, tensor in ADAPTED.items()}

    class Moving(Baseless):
        async def push_weights(self, header: PushHeader, *args: Any, **options: Any) -> PushResult:
            if header.kind is PushKind.ADAPTER:
                tensors[f"{LAYER}.lora_A.weight"].add_(1.0)
            return await super().push_weights(header, *args, **options)

    still, moving = Receiver("a:1"), Moving("a:2")
    made, _ = publisher(tensors, still, moving, dtype=dtype)
    await made.publish()
    (alone, sent), (whole, all_sent) = still.pushes[0], moving.pushes[0]
    assert whole.digest == alone.digest
    assert {name: all_sent[name] for name in sent} == sent


async def test_another_refusal_of_an_adapter_travels() -> None:
    made, _ = publisher(ADAPTED, Receiver(error=failure("PUSH_VERSION_CONFLICT")))
    with pytest.raises(CallError, match="PUSH_VERSION_CONFLICT"):
        await made.publish()
