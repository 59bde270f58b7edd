"""What torchrun starts in these tests: optimiser steps of sharded policies, without services.

torchrun ... -m tests.integration.learner.distributed.sharded_steps FOLDER '{"cases": [...], ...}'

FOLDER/model is what is trained. Rank 0 writes what each case came to into FOLDER: CASE.json (the
steps, the pushes, and what a reference said of the last step's completions), CASE.safetensors
(weights on the wire), CASE/ (a checkpoint and the exported model).
"""

from __future__ import annotations

import faulthandler
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors.torch import save_file
from tests.integration.learner.distributed.cases import CASES, ROWS, minibatches_of
from tests.support.receiver import Receiver

from antiphon.learner.config.sharding import Placement, ShardingSettings
from antiphon.learner.distributed.job import Job
from antiphon.learner.distributed.leader import Leader
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
        for number in sources:
            run(leader, number, folder, work)
        leader.check()
    finally:
        leader.close()


def run(leader: Leader, number: int, folder: Path, work: Work) -> None:
    name = work.cases[number]
    case = CASES[name]
    policy = leader.policy(number, case.settings, wire_dtype=case.wire)
    reference = policy.reference(offload=work.offload)
    if work.resume is not None:
        policy.read_state(Path(work.resume), "policy_0")
    receiver, steps = Receiver(policy.wire_weights()), []
    receiver.publish()
    with ThreadPoolExecutor(1) as beside:
        for step in range(*work.steps):
            joining = beside.submit(receiver.join)
            steps.append(asdict(policy.step(*minibatches_of(step))))
            joining.result()
            receiver.join()
            receiver.publish()
    logprobs = [one.logprobs(ROWS, tokens=12) for one in (policy, reference)]
    (folder / name).mkdir()
    policy.write_state(folder / name, "policy_0")
    wire = {n: t.contiguous() for n, t in policy.wire_tensors().items()}
    save_file(wire, folder / f"{name}.safetensors")
    leader.whole_model(number).save_pretrained(folder / name / "exported")
    received = {n: to_bytes(t, adapter_dtype(n, case.wire)) for n, t in wire.items()}
    assert receiver.tensors == received
    told = {"steps": steps, "optimizer_steps": policy.optimizer_steps}
    told |= {"pushes": receiver.kinds, "logprobs": logprobs, "reference": reference.state_dict()}
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
