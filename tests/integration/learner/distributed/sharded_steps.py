"""What torchrun starts in these tests: optimiser steps of sharded policies, without services.

torchrun ... -m tests.integration.learner.distributed.sharded_steps FOLDER '{"cases": [...], ...}'

FOLDER/model is what is trained. Rank 0 writes what each case came to into FOLDER: CASE.json (the
steps, the pushes, and what a reference said of the last step's completions), CASE.safetensors
(weights on the wire), CASE/ (a checkpoint and the exported model). Policies on ranks of their own
are trained at the same time.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tests.integration.learner.distributed.cases import CASES, ROWS, minibatches_of
from tests.support.receiver import Receiver

from antiphon.learner.arithmetic.samples import TrainingSample
from antiphon.learner.config.sharding import Placement, ShardingSettings
from antiphon.learner.distributed.job import Job
from antiphon.learner.distributed.leader import Leader, ShardedPolicy
from antiphon.learner.distributed.reference import ShardedReference
from antiphon.learner.distributed.source import ModelSource
from antiphon.learner.distributed.worker import serve
from antiphon.services.common.lora import adapter_dtype
from antiphon.services.common.tensors import to_bytes

HANGS_AFTER = 240
"""Seconds after which each rank tells where it stands, and ends."""


@dataclass(frozen=True)
class Work:
    """The cases to train, from one step to before another, from a checkpoint or anew."""

    cases: list[str]
    placement: str = "shared"
    offload: bool = False
    steps: tuple[int, int] = (0, 3)
    resume: str | None = None


def lead(job: Job, folder: Path, work: Work) -> None:
    sources = {
        number: ModelSource(agent=0, model=str(folder / "model"), lora=CASES[name].lora, seed=3)
        for number, name in enumerate(work.cases)
    }
    settings = ShardingSettings(placement=Placement(work.placement), offload=work.offload)
    leader = Leader(job, sources, settings)
    try:
        made = [Trained.made(leader, number, work) for number in sources]
        with ThreadPoolExecutor(len(made) if leader.side_by_side else 1) as at_once:
            nodes = [minibatches_of(step) for step in range(*work.steps)]
            list(at_once.map(lambda one: one.train(nodes), made))
        for number, one in enumerate(made):
            one.write(folder, work.cases[number])
            leader.whole_model(number).save_pretrained(folder / work.cases[number] / "exported")
        leader.check()
    finally:
        leader.close()


@dataclass
class Trained:
    """A policy with its reference, what it is published to, and the steps that it took."""

    policy: ShardedPolicy
    reference: ShardedReference
    receiver: Receiver
    steps: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def made(cls, leader: Leader, number: int, work: Work) -> Trained:
        case = CASES[work.cases[number]]
        policy = leader.policy(number, case.settings, wire_dtype=case.wire)
        reference = policy.reference(offload=work.offload)
        if work.resume is not None:
            policy.read_state(Path(work.resume), "policy_0")
        return cls(policy, reference, Receiver(policy.wire_weights()))

    def train(self, steps: list[list[list[TrainingSample]]]) -> None:
        """Publish each step, while another replica joins."""
        self.receiver.publish()
        with ThreadPoolExecutor(1) as beside:
            for minibatches in steps:
                joining = beside.submit(self.receiver.join)
                self.steps.append(asdict(self.policy.step(*minibatches)))
                joining.result()
                self.receiver.join()
                self.receiver.publish()

    def write(self, folder: Path, name: str) -> None:
        policy, reference, receiver = self.policy, self.reference, self.receiver
        logprobs = [one.logprobs(ROWS, tokens=12) for one in (policy, reference)]
        (folder / name).mkdir()
        policy.write_state(folder / name, "policy_0")
        wire = {n: t.contiguous() for n, t in policy.wire_tensors().items()}
        save_file(wire, folder / f"{name}.safetensors")
        received = {n: to_bytes(t, adapter_dtype(n, policy.wire_dtype)) for n, t in wire.items()}
        assert receiver.tensors == received
        told = {"steps": self.steps, "optimizer_steps": policy.optimizer_steps}
        told |= {"pushes": receiver.kinds, "logprobs": logprobs}
        told |= {"reference": reference.state_dict()}
        (folder / f"{name}.json").write_text(json.dumps(told))


def main() -> None:
    faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
    folder, work = Path(sys.argv[1]), Work(**json.loads(sys.argv[2]))
    job = Job.join()
    if job.rank:
        serve(job)
    else:
        with job.telling_errors():
            lead(job, folder, work)
        job.leave()


if __name__ == "__main__":
    main()
