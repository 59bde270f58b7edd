"""A full push of SmolLM2-135M in bf16 to two services at once, against raw TCP on loopback.

    make bench-push-full

All sides send the same bytes to two processes at once, in turn, several times; medians count.
The push ends when both services answer that they have applied and verified the weights. Bare gRPC,
which does nothing with the bytes, says how much of the difference is the transport's. What a
service does with the bytes is done once more by itself, so that a push's processor seconds have
names.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.processes import cpu_seconds, kernel_seconds
from benchmarks.push_parts import bare_grpc, raw_tcp, receiving
from benchmarks.push_parts.services import services
from benchmarks.results import Row, write
from examples.smollm2 import prepare
from transformers import AutoModelForCausalLM

from antiphon.clients.types import PushResult, TensorDtype
from antiphon.learner.weights.encoding import WeightsEncoder
from antiphon.learner.weights.replicas import RunIdentity
from antiphon.learner.weights.wire_weights import OwnWeights
from antiphon.services.common.tensors import wire_tensors

ROUNDS = 5
SERVICES = 2
IDENTITY = RunIdentity("push-full", 1)


async def measure(folder: Path, rounds: int = ROUNDS) -> dict[str, Any]:
    """Push and raw TCP in turn; seconds of each round, and what a push kept the engines from."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tensors = wire_tensors(model)
    weights = OwnWeights(lambda: tensors, TensorDtype.BFLOAT16)
    encoder = WeightsEncoder(IDENTITY, 0, weights, deltas=True)
    raw, bare, pushed, pauses, encoding, processor, sender = [], [], [], [], [], [], []
    bare_processor, kernel = [], []
    async with services(folder, SERVICES) as replicas:
        for version in range(1, rounds + 2):
            with torch.no_grad():
                tensors["model.norm.weight"].mul_(1.5)
            began = time.perf_counter()
            push = encoder.encode(version)
            encoding.append(time.perf_counter() - began)
            buffers = [push.read(index) for index in range(len(push.header.tensors))]
            raw.append(await asyncio.to_thread(raw_tcp.seconds_to_send, buffers, SERVICES))
            seconds, used = await bare_grpc.seconds_to_send(buffers, SERVICES)
            bare.append(seconds)
            bare_processor.append(used)
            used, own = cpu_seconds(os.getpid()), time.process_time()
            system = kernel_seconds(os.getpid())
            began = time.perf_counter()
            results: list[PushResult] = await asyncio.gather(
                *(r.client.push_weights(push.header, push.read, timeout=300.0) for r in replicas)
            )
            pushed.append(time.perf_counter() - began)
            processor.append(cpu_seconds(os.getpid()) - used)
            kernel.append(kernel_seconds(os.getpid()) - system)
            sender.append(time.process_time() - own)
            pauses.append(max(result.pause_seconds for result in results))
            for replica in replicas:
                loaded = (await replica.client.get_model_info(10.0)).loaded
                if (loaded.version, loaded.digest) != (version, push.header.digest):
                    raise RuntimeError(f"{replica.address} has loaded {loaded}, not the push")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # As many as each service has.
    staged, made = receiving.processor_seconds(folder, push.header, buffers, rounds + 1)
    torch.set_num_threads(threads)
    # The first round opens connections and touches memory for the first time.
    return {
        "bytes_to_each": push.nbytes,
        "services": SERVICES,
        "raw_tcp_seconds": raw[1:],
        "bare_grpc_seconds": bare[1:],
        "push_seconds": pushed[1:],
        "push_processor_seconds": processor[1:],
        "push_kernel_processor_seconds": kernel[1:],
        "sender_processor_seconds": sender[1:],
        "bare_grpc_processor_seconds": bare_processor[1:],
        "staged_processor_seconds": [SERVICES * seconds for seconds in staged[1:]],
        "made_weights_processor_seconds": [SERVICES * seconds for seconds in made[1:]],
        "pause_seconds": pauses[1:],
        "encode_seconds": encoding[1:],
    }


def main() -> None:
    found = asyncio.run(measure(prepare()))
    medians = {
        name: statistics.median(values)
        for name, values in found.items()
        if name.endswith("_seconds")
    }
    total = found["bytes_to_each"] * found["services"] / 1e6
    ratio = medians["raw_tcp_seconds"] / medians["push_seconds"]
    pause = medians["pause_seconds"] / medians["push_seconds"]
    details = found | {
        "push_megabytes_per_second": total / medians["push_seconds"],
        "raw_tcp_megabytes_per_second": total / medians["raw_tcp_seconds"],
        "bare_grpc_megabytes_per_second": total / medians["bare_grpc_seconds"],
        "of_bare_grpc": medians["bare_grpc_seconds"] / medians["push_seconds"],
        "pause_share": pause,
    }
    print(
        "processor seconds: {push:.2f} of a push, the kernel's {kernel:.2f} of them, the sender's "
        "{sender:.2f}; of the services', "
        "by themselves: to check, copy and hash the bytes {staged:.2f}, to make "
        "weights of them {made:.2f}; {bare:.2f} of bare gRPC, sender and receivers".format(
            push=medians["push_processor_seconds"],
            kernel=medians["push_kernel_processor_seconds"],
            sender=medians["sender_processor_seconds"],
            staged=medians["staged_processor_seconds"],
            made=medians["made_weights_processor_seconds"],
            bare=medians["bare_grpc_processor_seconds"],
        )
    )
    row = Row(
        name="push_full",
        value=ratio,
        unit="of raw TCP",
        wanted="at least 0.6, and a pause of at most 0.1 of the push",
        holds=ratio >= 0.6 and pause <= 0.1,
        baseline=(
            f"{details['push_megabytes_per_second']:.0f} against "
            f"{details['raw_tcp_megabytes_per_second']:.0f} MB/s of raw TCP to two processes and "
            f"{details['bare_grpc_megabytes_per_second']:.0f} of bare gRPC; the pause was "
            f"{pause:.3f} of the push"
        ),
        details=details,
    )
    write(row)


if __name__ == "__main__":
    main()
