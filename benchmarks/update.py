"""The update alone: trained tokens per second, against the same FLOPs as plain matrix products.

    make bench-update

Two policies of SmolLM2-135M take optimiser steps side by side, each on half of the cores, as in a
run: two nodes a step, four completions of 64 tokens each, whole steps with AdamW, the norm of the
gradient and the rounding to bf16. In turn with them as many threads multiply matrices. The
FLOPs are those that the tokens need, each prompt once and no padding
(`benchmarks.update_parts.flops`), whatever was computed. Before any time is told, a step's gradient
is held against a plain one.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from benchmarks import results
from benchmarks.update_parts.flops import flops, needed, product_rate
from benchmarks.update_parts.groups import group, policy
from benchmarks.update_parts.plain import first_gradient, plain_gradient, relative_difference

from antiphon.learner.arithmetic.buffer import RolloutBuffer
from antiphon.learner.arithmetic.samples import TrainingSample
from antiphon.learner.policy.policy import Policy
from antiphon.learner.policy.updates import Updates

AGENTS, NODES, PROMPT, COMPLETIONS, NEW_TOKENS = 2, 2, 48, 4, 64
ROUNDS = 5
PRODUCT_SECONDS = 2.0
WANTED = 0.6
SAME = 1e-4
"""Largest relative difference of gradients: that of float32 sums in another order."""


def main() -> None:
    """Measure and write the row."""
    cores = len(os.sched_getaffinity(0))
    policies = [policy(agent, new_tokens=NEW_TOKENS) for agent in range(AGENTS)]
    samples = [_nodes(one) for one in policies]
    torch.set_num_threads(cores)
    wanted = plain_gradient(policies[0].model, samples[0])
    buffers = [RolloutBuffer(agent, NODES, NODES, seed=0) for agent in range(AGENTS)]
    updates = Updates(buffers, policies, threads=cores)
    side_by_side = min(AGENTS, cores)
    products = ThreadPoolExecutor(
        side_by_side,
        initializer=torch.set_num_threads,
        initargs=(max(1, cores // side_by_side),),
    )
    _update(updates, samples)
    difference = relative_difference(first_gradient(policies[0]), wanted)
    assert difference < SAME, f"gradients differ by {difference:.2g}, wanted below {SAME}"
    del wanted
    seconds, cpu, rates, rates_cpu = [], [], [], []
    for _ in range(ROUNDS):
        cpu_before, before = time.process_time(), time.perf_counter()
        each = list(products.map(product_rate, [PRODUCT_SECONDS] * side_by_side))
        rates.append(sum(each))
        rates_cpu.append(sum(each) * PRODUCT_SECONDS / (time.process_time() - cpu_before))
        cpu_before, before = time.process_time(), time.perf_counter()
        _update(updates, samples)
        seconds.append(time.perf_counter() - before)
        cpu.append(time.process_time() - cpu_before)
    updates.close()
    needs = sum(flops(p, s) for p, s in zip(policies, samples, strict=True))
    ideal = needs / statistics.median(rates)
    _write(seconds, ideal, needs, rates, difference, _cpu_share(needs, rates_cpu, cpu), samples)


def _nodes(trained: Policy) -> list[TrainingSample]:
    return [
        group(
            trained,
            prompt=PROMPT,
            completions=COMPLETIONS,
            new_tokens=NEW_TOKENS,
            seed=10 * trained.agent + node,
        )
        for node in range(NODES)
    ]


def _update(updates: Updates, samples: list[list[TrainingSample]]) -> None:
    done = asyncio.run(updates.run(samples, end_of_epoch=True))
    assert all(update.stepped and len(update.steps) == 1 for update in done)


def _cpu_share(needs: float, rates: list[float], cpu: list[float]) -> float:
    """As the row's value, in seconds of the processor: what others do meanwhile is not in it."""
    return needs / statistics.median(rates) / statistics.median(cpu)


def _write(
    seconds: list[float],
    ideal: float,
    needs: float,
    rates: list[float],
    difference: float,
    cpu_share: float,
    samples: list[list[TrainingSample]],
) -> None:
    step = statistics.median(seconds)
    trained = sum(len(c.token_ids) for nodes in samples for n in nodes for c in n.completions)
    details: dict[str, Any] = {
        "trained_tokens_per_second": trained / step,
        "trained_tokens": trained,
        "tokens_through_the_layers": sum(needed(nodes).tokens for nodes in samples),
        "update_seconds": seconds,
        "product_seconds_of_the_same_flops": ideal,
        "gflop": needs / 1e9,
        "product_gflop_per_second": [rate / 1e9 for rate in rates],
        "share_in_processor_seconds": cpu_share,
        "gradient_against_plain": difference,
        "agents_side_by_side": AGENTS,
    }
    results.write(
        results.Row(
            name="update",
            value=ideal / step,
            unit="of the speed of plain matrix products",
            wanted=f"at least {WANTED}",
            holds=ideal / step >= WANTED,
            baseline="the same FLOPs as float32 matrix products of 1024 x 1024",
            details=details,
        )
    )


if __name__ == "__main__":
    main()
