"""Memory of a learner of several ranks, against what their parts of a policy come to.

One random Llama, a few optimiser steps of it, each of them published: by one process that holds all
of it, and by two ranks that hold half of it each (FSDP2 over gloo, on the CPU). Both train the
same completions, and no figure is told unless their weights come out the same, and what was
published is what the weights are. Peaks are those of the resident memory
from just before the policy is made (the kernel's high-water mark, set back then), less what was
resident before. What rank 0 takes to read the model, whole and once, before it hands it out, is
told apart. On both sides large blocks that are freed go back to the system at once, so that peaks
are of what is in use.

A policy of P parameters is 20 P bytes, all float32: weights (on a float32 wire they are the master
weights too), AdamW's two moments, the gradient of a step, and the weights as they were published,
of which each rank keeps its part.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.results import Row, write

RANKS = 2
STEPS = 3
WITHIN = 1.25
TOLERANCE = 1e-6
LOSS_TOLERANCE = 1e-5
"""Of later steps: one process computes layers with fewer passes, which rounds otherwise."""
BYTES_PER_PARAMETER = 20
MODEL = {
    "vocab_size": 4096,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}


def make_model(folder: Path) -> int:
    """Save a random model; its number of parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**MODEL))
    model.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def samples() -> list[Any]:
    """Two nodes of four completions."""
    from tests.support.trees import make_sample

    nodes = []
    for node in range(2):
        prompt = [(7 * i + node) % 4000 + 3 for i in range(24)]
        completions = [
            ([(11 * i + 5 * c + node) % 4000 + 3 for i in range(16)], float(c - 1.5))
            for c in range(4)
        ]
        nodes.append(
            make_sample(
                prompt,
                completions,
                logprobs=[[-9.0] * 16] * 4,
                kept_sizes=[[20] * 16] * 4,
            )
        )
    return nodes


def settings() -> Any:
    from antiphon.learner.policy.policy import PolicySettings

    return PolicySettings(
        temperature=1.0,
        max_new_tokens=16,
        learning_rate=1e-4,
        micro_batch_tokens=128,
        activation_checkpointing=True,
    )


def resident() -> int:
    """Resident bytes of this process now."""
    return _status("VmRSS")


def peak() -> int:
    """The most resident bytes since `start`."""
    return _status("VmHWM")


def start() -> int:
    """Set the high-water mark back to what is resident now, and give it."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident()


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status: got no {name}, wanted one (Linux)")


def digest(tensors: Any) -> dict[str, float]:
    """The sum of each tensor's magnitudes, in float64, which tells other weights apart."""
    return {name: tensor.double().abs().sum().item() for name, tensor in tensors.items()}


def trained(policy: Any) -> tuple[list[float], float]:
    """The losses of a few steps, each of them published, and how long they took.

    Raises:
        SystemExit: What was published are not the weights.
    """
    from antiphon.clients.digest import tensor_checksum
    from antiphon.learner.weights.encoding import WeightsEncoder
    from antiphon.learner.weights.replicas import RunIdentity

    nodes, weights = samples(), policy.wire_weights()
    encoder = WeightsEncoder(RunIdentity("sharding", 1), 0, weights, deltas=True)
    began = time.perf_counter()
    push = encoder.encode(1)
    losses = []
    for step in range(STEPS):
        losses.append(asdict(policy.step(nodes))["loss"])
        push = encoder.encode(step + 2)
    seconds = time.perf_counter() - began
    for index, spec in enumerate(push.header.tensors):
        sent, now = push.read(index), weights.present(spec.name)
        if not tensor_checksum(sent) == tensor_checksum(now) == spec.checksum:
            raise SystemExit(f"{spec.name}: what is published is not what the weights are")
    return losses, seconds


def alone(folder: Path) -> dict[str, Any]:
    """One process that holds all."""
    from antiphon.clients.types import TensorDtype
    from antiphon.learner.distributed.source import ModelSource
    from antiphon.learner.policy.policy import Policy
    from antiphon.services.common.allocator import keep_no_freed_blocks

    keep_no_freed_blocks()
    before = start()
    model = ModelSource(agent=0, model=str(folder)).load()
    policy = Policy(0, model, settings(), wire_dtype=TensorDtype.FLOAT32)
    loaded = peak() - before
    losses, seconds = trained(policy)
    most = peak() - before
    weights = digest(policy.wire_tensors())
    return {"peaks": [most], "loaded": [loaded], "seconds": seconds} | {
        "losses": losses,
        "weights": weights,
    }


def together(folder: Path, out: Path) -> None:
    """One of several ranks; each writes its own figures, rank 0 all others."""
    from antiphon.clients.types import TensorDtype
    from antiphon.learner.config.sharding import ShardingSettings
    from antiphon.learner.distributed.job import Job
    from antiphon.learner.distributed.leader import Leader
    from antiphon.learner.distributed.source import ModelSource
    from antiphon.learner.distributed.worker import serve

    job = Job.join()
    before = start()
    if job.rank:
        serve(job)
        (out / f"rank-{job.rank}.json").write_text(json.dumps({"peak": peak() - before}))
        return
    leader = Leader(job, {0: ModelSource(agent=0, model=str(folder))}, ShardingSettings())
    policy = leader.policy(0, settings(), wire_dtype=TensorDtype.FLOAT32)
    loaded = peak() - before
    start()  # rank 0 reads the model whole, once; what it holds afterwards is told apart
    losses, seconds = trained(policy)
    most = peak() - before
    weights = digest(policy.wire_tensors())
    leader.close()
    job.leave()
    figures = {"peak": most, "loaded": loaded, "seconds": seconds}
    (out / "rank-0.json").write_text(json.dumps(figures | {"losses": losses, "weights": weights}))


def measured(folder: Path, temporary: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What one process and what several ranks come to."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    here = [sys.executable, "-m", "benchmarks.sharding"]
    one = subprocess.run(
        [*here, "--alone", str(folder)], env=environ, check=True, capture_output=True, text=True
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    subprocess.run(
        [*torchrun, "-m", "benchmarks.sharding", "--together", str(folder), str(temporary)],
        env=environ,
        check=True,
    )
    ranks = [json.loads((temporary / f"rank-{n}.json").read_text()) for n in range(RANKS)]
    return json.loads(one.stdout.splitlines()[-1]), ranks


def check_same(one: dict[str, Any], many: dict[str, Any]) -> None:
    """Refuse figures of two sides that did not do the same."""
    for name, value in one["weights"].items():
        if abs(many["weights"][name] - value) > TOLERANCE * max(1.0, value):
            raise SystemExit(f"{name}: got {many['weights'][name]} of ranks, wanted {value}")
    for ours, theirs in zip(many["losses"], one["losses"], strict=True):
        if abs(ours - theirs) > LOSS_TOLERANCE * max(1.0, abs(theirs)):
            raise SystemExit(f"losses: got {many['losses']} of ranks, wanted {one['losses']}")


def main() -> None:
    """Measure and write the row."""
    with TemporaryDirectory(prefix="antiphon-") as name:
        temporary = Path(name)
        parameters = make_model(temporary / "model")
        one, ranks = measured(temporary / "model", temporary)
    check_same(one, ranks[0])
    whole = BYTES_PER_PARAMETER * parameters
    share = max(rank["peak"] for rank in ranks) / one["peaks"][0]
    times = share * RANKS
    write(
        Row(
            name="sharding",
            value=times,
            unit=f"times a {RANKS}th part of the memory of one process",
            wanted=f"at most {WITHIN}",
            holds=times <= WITHIN,
            baseline="one process that trains and publishes the same steps, same invocation",
            details={
                "parameters": parameters,
                "bytes_of_weights_moments_gradient_and_what_was_published": whole,
                "ranks": RANKS,
                "steps": STEPS,
                "one_process": {"peak_bytes": one["peaks"][0], "seconds": one["seconds"]},
                "each_rank": {"peak_bytes": [rank["peak"] for rank in ranks]},
                "rank_0": {
                    "peak_bytes_while_reading_the_model": ranks[0]["loaded"],
                    "seconds": ranks[0]["seconds"],
                },
                "peak_over_part": [rank["peak"] / (whole / RANKS) for rank in ranks],
            },
        )
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        print(json.dumps(alone(Path(sys.argv[2]))))
    elif sys.argv[1:2] == ["--together"]:
        together(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
