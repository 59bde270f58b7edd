"""The update alone: trained tokens per second, against the same FLOPs as plain matrix products.

    make bench-update

Two policies of SmolLM2-135M take optimiser steps side by side, each on half of the cores, as in a
run: three steps an update, two nodes a step, four completions of 64 tokens each, whole steps with
AdamW, the norm of the gradient and the rounding to bf16. Before and after each update as many
threads multiply matrices. The FLOPs are those that the tokens need, each prompt once and no padding
(`benchmarks.update_parts.flops`), whatever was computed. Before any time is told, a step's gradient
is held against a plain one.
"""

from __future__ import annotations

import asyncio
import itertools
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
from benchmarks.update_parts.profile import seconds_by_part

from antiphon.learner.arithmetic.buffer import RolloutBuffer
from antiphon.learner.arithmetic.samples import TrainingSample
from antiphon.learner.policy.policy import Policy
from antiphon.learner.policy.updates import Updates
from antiphon.services.common.allocator import reuse_blocks_of_a_step

AGENTS, STEPS, NODES, PROMPT, COMPLETIONS, NEW_TOKENS = 2, 3, 2, 48, 4, 64
ROUNDS = 3
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
    wanted = plain_gradient(policies[0].model, samples[0][:NODES])
    policies[0].step(samples[0][:NODES])
    difference = relative_difference(first_gradient(policies[0]), wanted)
    results.require(difference < SAME, f"gradients differ by {difference:.2g}, wanted < {SAME}")
    del wanted
    buffers = [RolloutBuffer(agent, NODES, NODES, seed=0) for agent in range(AGENTS)]
    side_by_side = min(AGENTS, cores)
    each = cores // side_by_side
    reuse_blocks_of_a_step()  # as runs do
    updates = Updates(buffers, policies, at_once=side_by_side, threads=each)
    pool = ThreadPoolExecutor(side_by_side, initializer=torch.set_num_threads, initargs=(each,))
    _update(updates, samples)
    products = [_products(pool, side_by_side)]
    update_seconds, update_cpu = [], []
    for _ in range(ROUNDS):
        cpu, start = time.process_time(), time.perf_counter()
        _update(updates, samples)
        update_seconds.append(time.perf_counter() - start)
        update_cpu.append(time.process_time() - cpu)
        products.append(_products(pool, side_by_side))
    updates.close()
    parts = seconds_by_part(lambda: policies[0].step(samples[0][:NODES]))
    print("seconds of a step on one thread: " + ", ".join(f"{k} {v:.2f}" for k, v in parts.items()))
    needs = sum(flops(p.model, needed(s)) for p, s in zip(policies, samples, strict=True))
    shares = _shares(needs, [wall for wall, _ in products], update_seconds)
    trained = sum(len(c.token_ids) for nodes in samples for n in nodes for c in n.completions)
    _write(
        statistics.median(shares),
        trained_tokens_per_second=trained / statistics.median(update_seconds),
        trained_tokens=trained,
        tokens_through_the_layers=sum(needed(nodes).tokens for nodes in samples),
        gflop=needs / 1e9,
        update_seconds=update_seconds,
        product_gflop_per_second=[wall / 1e9 for wall, _ in products],
        shares=shares,
        shares_in_processor_seconds=_shares(needs, [cpu for _, cpu in products], update_cpu),
        seconds_of_a_step_by_part=parts,
        gradient_against_plain=difference,
        agents_side_by_side=AGENTS,
        steps_of_an_update=STEPS,
    )


def _products(pool: ThreadPoolExecutor, threads: int) -> tuple[float, float]:
    """FLOP/s of all threads' products together, and FLOP per second of the processor."""
    cpu = time.process_time()
    each = list(pool.map(product_rate, [PRODUCT_SECONDS] * threads))
    return sum(each), sum(each) * PRODUCT_SECONDS / (time.process_time() - cpu)


def _shares(needs: float, rates: list[float], seconds: list[float]) -> list[float]:
    """What products before and after each update would have taken, over what it took."""
    around = itertools.pairwise(rates)
    return [
        needs / statistics.mean(pair) / took for pair, took in zip(around, seconds, strict=True)
    ]


def _nodes(trained: Policy) -> list[TrainingSample]:
    return [
        group(
            trained,
            prompt=PROMPT,
            completions=COMPLETIONS,
            new_tokens=NEW_TOKENS,
            seed=100 * trained.agent + node,
        )
        for node in range(STEPS * NODES)
    ]


def _update(updates: Updates, samples: list[list[TrainingSample]]) -> None:
    done = asyncio.run(updates.run(samples, end_of_epoch=True))
    every = all(update.stepped and len(update.steps) == STEPS for update in done)
    results.require(every, f"an update did not make {STEPS} steps")


def _write(value: float, **details: Any) -> None:
    results.write(
        results.Row(
            name="update",
            value=value,
            unit="of the speed of plain matrix products",
            wanted=f"at least {WANTED}",
            holds=value >= WANTED,
            baseline="the same FLOPs as float32 matrix products of 1024 x 1024",
            details=details,
        )
    )


if __name__ == "__main__":
    main()
