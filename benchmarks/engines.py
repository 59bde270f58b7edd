"""Engines side by side: tokens per second, memory, and the pauses of full pushes and of deltas.

    make bench-engines

SmolLM2-135M in float32 on a CPU: the transformers engine, vLLM as the vllm engine runs it, and a
vLLM server driven over its control endpoints (pause, reload_weights, reset_prefix_cache, resume),
which is what the vllm engine would be as a supervised program. All sample the same prompts and take
the same weights, in turn. Before a time is told, each engine's greedy tokens are held against those
of the transformers engine, and what it samples after a delta against the learner's model with those
weights.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import torch
from benchmarks import results
from benchmarks.engines_parts.in_service import InService
from benchmarks.engines_parts.vllm_server import VllmServer
from benchmarks.engines_parts.work import (
    CHANGED_SHARE,
    MODEL,
    TEXTS,
    Contender,
    Sampled,
    changes_to,
    gap,
    memory,
    model_of,
    some_changed,
)
from torch import Tensor

from antiphon.clients.types import SamplingParameters
from antiphon.services.common.models import load_model
from antiphon.services.common.tensors import wire_tensors

SAMPLES, LENGTH, SAME, ROUNDS, DELTA_ROUNDS = 4, 48, 6, 3, 3
TOLERANCE = 0.01
GREEDY = SamplingParameters(0.0, None, None, SAME)
WHOLE = SamplingParameters(1.0, None, None, SAME)
CUT = SamplingParameters(0.6, 50, 0.6, LENGTH)
SETTINGS = {"enforce_eager": True, "max_model_len": 512}
ENVIRON = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "HF_HUB_OFFLINE": "1",
}
CONTENDERS: Mapping[str, Callable[[], Awaitable[Contender]]] = {
    "transformers": lambda: InService.start("transformers", {}),
    "vllm": lambda: InService.start("vllm", SETTINGS),
    "vllm_server": lambda: VllmServer.start(SETTINGS),
}
Figures = dict[str, dict[str, Any]]


def main() -> None:
    """Measure and write the rows."""
    os.environ.update(ENVIRON)
    figures = asyncio.run(_measured())
    rate, push, delta = (
        {name: statistics.median(figure[kind]) for name, figure in figures.items()}
        for kind in ("rates", "push_pauses", "delta_pauses")
    )
    results.write(
        results.Row(
            name="engine_throughput",
            value=rate["vllm"] / rate["transformers"],
            unit="times",
            wanted="at most 1: vLLM on a CPU is no faster",
            holds=rate["vllm"] <= rate["transformers"],
            baseline=f"the transformers engine, {rate['transformers']:.0f} tokens/s",
            details={
                name: {kind: figure[kind] for kind in ("rates", "gigabytes")}
                for name, figure in figures.items()
            },
        )
    )
    told = {name: figure["deltas"] for name, figure in figures.items()}
    results.write(_pause("engine_push_pause", push, {}))
    results.write(_pause("engine_delta_pause", delta, {"changed_share": CHANGED_SHARE, **told}))


def _pause(name: str, seconds: dict[str, float], details: dict[str, Any]) -> results.Row:
    ratio = seconds["vllm_server"] / seconds["vllm"]
    return results.Row(
        name=name,
        value=ratio,
        unit="times",
        wanted="0.8 to 1.25: what pauses is the reload, not the way that it is asked for",
        holds=0.8 <= ratio <= 1.25,
        baseline=f"vLLM in the service's process, {seconds['vllm']:.2f} s",
        details={"seconds": seconds, **details},
    )


async def _measured() -> Figures:
    own = wire_tensors(load_model(MODEL, dtype=torch.bfloat16))
    figures: Figures = {}
    contenders: dict[str, Contender] = {}
    async with AsyncExitStack() as stack:
        for name, start in CONTENDERS.items():
            before = memory()
            contenders[name] = contender = await start()
            stack.push_async_callback(contender.stop)
            await contender.sample(CUT, SAMPLES, 0)
            figures[name] = {"rates": [], "gigabytes": (memory() - before) / 1e9}
        for round_ in range(ROUNDS):
            for name, contender in contenders.items():
                figures[name]["rates"].append(await _rate(contender, round_))
        await _full_pushes(contenders, own, figures)
        await _deltas(contenders, own, figures)
        if isinstance(server := contenders["vllm_server"], VllmServer):
            steps = {path: statistics.median(times) for path, times in server.steps.items()}
            figures["vllm_server"]["deltas"]["seconds_by_request"] = steps
    return figures


async def _rate(contender: Contender, round_: int) -> float:
    began = time.perf_counter()
    completions = await contender.sample(CUT, SAMPLES, 1000 * round_)
    seconds = time.perf_counter() - began
    tokens, most = sum(len(one.ids) for one in completions), len(TEXTS) * SAMPLES * LENGTH
    results.require(
        tokens > 0.98 * most, f"{tokens} tokens, wanted {most} or nearly: hardly any text ends"
    )
    return tokens / seconds


async def _full_pushes(
    contenders: dict[str, Contender], own: dict[str, Tensor], figures: Figures
) -> None:
    await _same_greedy(contenders)
    moved = {name: tensor * 1.01 for name, tensor in own.items()}
    for figure in figures.values():
        figure["push_pauses"] = []
    for _ in range(ROUNDS):
        for weights in (moved, own):
            for name, contender in contenders.items():
                figures[name]["push_pauses"].append(await contender.push(weights))
            await _same_greedy(contenders)


async def _same_greedy(contenders: dict[str, Contender]) -> None:
    """Fails unless all say the same."""
    said = {name: _ids(await one.sample(GREEDY, 1, 0)) for name, one in contenders.items()}
    for name, tokens in said.items():
        results.require(tokens == said["transformers"], f"{name} samples other greedy tokens")


def _ids(completions: list[Sampled]) -> list[tuple[int, ...]]:
    return [one.ids for one in completions]


async def _deltas(
    contenders: dict[str, Contender], own: dict[str, Tensor], figures: Figures
) -> None:
    changed, positions = some_changed(own)
    models = {name: model_of(weights) for name, weights in (("own", own), ("changed", changed))}
    for figure in figures.values():
        figure |= {"delta_pauses": [], "deltas": {"seconds_in_all": [], "gap": 0.0}}
    for _ in range(DELTA_ROUNDS):
        for now, before, after in (("changed", "own", changed), ("own", "changed", own)):
            changes = changes_to(after, positions)
            for name, contender in contenders.items():
                began = time.perf_counter()
                figures[name]["delta_pauses"].append(await contender.change(changes, after))
                told = figures[name]["deltas"]
                told["seconds_in_all"].append(time.perf_counter() - began)
                completions = await contender.sample(WHOLE, 1, 0)
                told["gap"] = max(told["gap"], gap(models[now], completions))
                results.require(
                    told["gap"] < TOLERANCE, f"{name} has other weights after a delta: {told}"
                )
                changes_much = gap(models[before], completions) > 10 * TOLERANCE
                results.require(changes_much, "the delta is too small to be seen")


if __name__ == "__main__":
    main()
