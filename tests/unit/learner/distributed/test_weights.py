"""What ranks keep of a publish, and what rank 0 gathers of it; here one rank, that holds all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from tests.support.policies import BF16, SETTINGS, make_model, minibatch
from tests.support.receiver import Receiver

from antiphon.clients.types import PushKind
from antiphon.learner.distributed.ensemble import Ensemble
from antiphon.learner.distributed.job import Job
from antiphon.learner.distributed.leader import ShardedPolicy
from antiphon.learner.distributed.source import ModelSource
from antiphon.learner.weights.encoding import MovedOnError, WeightsEncoder
from antiphon.learner.weights.replicas import RunIdentity


class Counting(Ensemble):
    """Notes what the ranks are told."""

    told: list[str]

    def collect(self, do: str, **arguments: Any) -> Any:
        self.told.append(do)
        return super().collect(do, **arguments)


@pytest.fixture
def ensemble() -> Iterator[Counting]:
    job = Job(0, 1, dist.HashStore())
    (group,) = job.groups([(0,)])
    made = Counting(job, group)
    made.told = []
    yield made
    job.leave()


@pytest.fixture
def policy(ensemble: Ensemble, tmp_path: Path) -> ShardedPolicy:
    make_model(seed=4).save_pretrained(tmp_path)
    source = ModelSource(agent=0, model=str(tmp_path))
    small = replace(SETTINGS, learning_rate=2e-5)
    return ShardedPolicy(ensemble, source, 0, small, wire_dtype=BF16, offload=False)


def step(policy: ShardedPolicy) -> None:
    assert policy.step(minibatch(make_model(seed=7))).stepped


def test_deltas_lead_from_publish_to_publish(policy: ShardedPolicy) -> None:
    receiver = Receiver(policy.wire_weights())
    receiver.publish()
    for _ in range(3):
        step(policy)
        receiver.join()
        receiver.publish()
    assert receiver.kinds == ["full", "delta", "delta", "delta"]


def test_replicas_that_are_sent_a_tensor_at_one_time_share_it(
    policy: ShardedPolicy, ensemble: Counting
) -> None:
    encoder = WeightsEncoder(RunIdentity("run", 1), 0, policy.wire_weights(), deltas=True)
    push = encoder.encode(1)
    ensemble.told.clear()
    one, other = push.read(0), push.read(0)
    assert one == other
    assert ensemble.told == ["published"]
    one.release()
    other.release()
    del one, other
    push.read(0)
    assert ensemble.told == ["published", "published"]


@pytest.mark.parametrize("deltas", [True, False])
def test_what_was_published_before_is_not_sent_as_something_else(
    policy: ShardedPolicy, *, deltas: bool
) -> None:
    """S2: whoever still reads the older push is told, and gets what is published next."""
    encoder = WeightsEncoder(RunIdentity("run", 1), 0, policy.wire_weights(), deltas=deltas)
    old = encoder.encode(1)
    step(policy)
    new = encoder.encode(2)
    assert (old.header.kind, new.header.kind) == (PushKind.FULL, PushKind.FULL)
    moved = [
        index
        for index, (was, now) in enumerate(zip(old.header.tensors, new.header.tensors, strict=True))
        if was.checksum != now.checksum
    ]
    assert moved
    with pytest.raises(MovedOnError):
        old.read(moved[0])
    assert len(new.read(moved[0])) == new.header.tensors[moved[0]].nbytes
