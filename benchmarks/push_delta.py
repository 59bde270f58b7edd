"""Deltas of SmolLM2-135M after optimiser steps at two learning rates, against a full bf16 push.

    make bench-push-delta

Services sample completions, a policy takes AdamW steps on them, and what a step changed is pushed
to both services at once. Bytes are those of all messages of a push, header included. After every
push both services must have the digest that the policy's own tensors give: the same bits.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.push_parts.services import services
from benchmarks.push_parts.training import groups, policy
from benchmarks.results import Row, write
from examples.smollm2 import prepare

from antiphon.clients.digest import weights_digest
from antiphon.clients.push import push_messages
from antiphon.clients.types import PushKind, PushResult, TensorDtype
from antiphon.learner.policy.policy import Policy
from antiphon.learner.weights.encoding import Push, WeightsEncoder
from antiphon.learner.weights.replicas import Replica, RunIdentity
from antiphon.services.common.tensors import tensor_specs

LEARNING_RATES = {1e-6: 0.0035, 5e-6: 0.008}
"""And which share of a full push's bytes one step's delta may have."""
SINGLE_STEPS, STEPS_OF_A_PROMPT = 2, 3
ENCODE_BYTES_PER_SECOND = 1e9
BF16 = TensorDtype.BFLOAT16


@dataclass(frozen=True)
class Pushed:
    """One push: how many optimiser steps it brings, what it took, and a full push's bytes."""

    steps: int
    kind: str
    nbytes: int
    full_nbytes: int
    encode_seconds: float
    encode_processor_seconds: float
    seconds_to_applied: float
    pause_seconds: float

    @property
    def share(self) -> float:
        """Bytes as a share of those of a full push."""
        return self.nbytes / self.full_nbytes


class Pusher:
    """Pushes a policy's weights to both services, as the publisher of a run does, with a clock."""

    def __init__(self, identity: RunIdentity, trained: Policy, replicas: list[Replica]) -> None:
        self._trained = trained
        self._replicas = replicas
        self._encoder = WeightsEncoder(identity, 0, trained.wire_weights(), deltas=True)
        self.version = 0

    async def push(self, steps: int) -> Pushed:
        """Encode, push to all services at once, and hold what they loaded against the policy."""
        self.version += 1
        began, used = time.perf_counter(), time.process_time()
        whole = self._encoder.encode(self.version)
        encoded, used = time.perf_counter(), time.process_time() - used
        pushes = [self._encoder.path(r.acknowledged, whole)[-1] for r in self._replicas]
        results: list[PushResult] = await asyncio.gather(
            *(
                replica.client.push_weights(push.header, push.read, timeout=300.0)
                for replica, push in zip(self._replicas, pushes, strict=True)
            )
        )
        applied = time.perf_counter()
        specs = tensor_specs(self._trained.wire_tensors(), BF16)
        for replica in self._replicas:
            replica.acknowledged = (await replica.client.get_model_info(10.0)).loaded
            if replica.acknowledged.digest != weights_digest(specs):
                raise RuntimeError(f"{replica.address} has other weights than the policy")
        return Pushed(
            steps=steps,
            kind=pushes[0].header.kind.value,
            nbytes=await message_bytes(pushes[0]),
            full_nbytes=await message_bytes(whole),
            encode_seconds=encoded - began,
            encode_processor_seconds=used,
            seconds_to_applied=applied - began,
            pause_seconds=max(result.pause_seconds for result in results),
        )


async def message_bytes(push: Push) -> int:
    """Bytes of all messages of a push."""
    return sum([len(message) async for message in push_messages(push.header, push.read)])


async def measure(folder: Path) -> dict[float, list[Pushed]]:
    """For each learning rate: the first push, single steps, then a prompt's steps together."""
    found = {}
    async with services(folder, 2) as replicas:
        for incarnation, learning_rate in enumerate(LEARNING_RATES, start=1):
            identity = RunIdentity("push-delta", incarnation)
            trained = policy(folder, learning_rate)
            pusher = Pusher(identity, trained, replicas)
            pushed = [await pusher.push(0)]
            nodes = await groups(replicas[0], identity, pusher.version, STEPS_OF_A_PROMPT)
            following = itertools.cycle(nodes)
            for steps in [1] * SINGLE_STEPS + [STEPS_OF_A_PROMPT]:
                for _ in range(steps):
                    trained.step([next(following)])
                pushed.append(await pusher.push(steps))
            found[learning_rate] = pushed
    return found


def main() -> None:
    """Measure and write the row."""
    found = asyncio.run(measure(prepare()))
    full = next(p for pushed in found.values() for p in pushed if p.kind == PushKind.FULL)
    deltas = [p for pushed in found.values() for p in pushed if p.steps]
    rates = [p.full_nbytes / p.encode_seconds for p in deltas]
    # The larger one of several single steps.
    shares = {rate: max(p.share for p in found[rate] if p.steps == 1) for rate in LEARNING_RATES}
    rate = statistics.median(rates)
    details: dict[str, Any] = {
        "full_push": asdict(full),
        "pushes": {
            f"{learning_rate:g}": [asdict(p) | {"share": p.share} for p in pushed]
            for learning_rate, pushed in found.items()
        },
        "share_after_one_step": {f"{lr:g}": share for lr, share in shares.items()},
        "share_of_a_prompts_steps": {f"{lr:g}": p[-1].share for lr, p in found.items()},
        "encode_bytes_per_second": rate,
        "encode_bytes_per_processor_second": statistics.median(
            p.full_nbytes / p.encode_processor_seconds for p in deltas
        ),
        "encode_seconds": statistics.median(p.encode_seconds for p in deltas),
        "encode_seconds_without_comparing": full.encode_seconds,
        "seconds_to_applied": statistics.median(p.seconds_to_applied for p in deltas),
        "pause_seconds": max(p.pause_seconds for p in deltas),
    }
    small = all(shares[lr] <= most for lr, most in LEARNING_RATES.items())
    write(
        Row(
            name="push_delta",
            value=100 * shares[1e-6],
            unit="% of a full push after one step at 1e-6",
            wanted=(
                "at most 0.35 %, at most 0.8 % at 5e-6, encoding at least 1 GB/s of bf16 weights"
            ),
            holds=small and rate >= ENCODE_BYTES_PER_SECOND,
            baseline=(
                f"full {full.full_nbytes / 1e6:.0f} MB in {full.seconds_to_applied:.2f} s; at 5e-6 "
                f"{100 * shares[5e-6]:.3f} %; encoding {rate / 1e9:.2f} GB/s; applied after "
                f"{details['seconds_to_applied']:.2f} s"
            ),
            details=details,
        )
    )


if __name__ == "__main__":
    main()
