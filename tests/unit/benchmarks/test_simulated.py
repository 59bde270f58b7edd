"""The services that sleep keep the contract, and what is calculated is what a clock would say."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from benchmarks.simulated.engine import Pace, SimulatedEngine
from benchmarks.simulated.run import Job
from benchmarks.simulated.serve import Services, reward_of
from benchmarks.slow_reward import calculated

from antiphon.clients.types import Completion, LoadedWeights, SamplingParameters
from antiphon.services.generation.engine import EncodedPrompt, EngineRequest

QUICK = Pace(0.0005, rows=2, shortest=0.5)


def request(prompts: int, tokens: int = 8) -> EngineRequest:
    return EngineRequest(
        tuple(EncodedPrompt((5, 6), (10 * p, 10 * p + 1)) for p in range(prompts)),
        SamplingParameters(1.0, None, None, tokens),
        include_full_logprobs=False,
        admit=lambda loaded: None,
    )


async def sampled(engine: SimulatedEngine, asked: EngineRequest) -> list[Completion]:
    return [completion async for completion in engine.generate(asked)]


async def test_every_sample_comes_once_and_is_the_same_every_time(tiny_model_folder: Path) -> None:
    engine = SimulatedEngine(tiny_model_folder, QUICK)
    engine.start()
    try:
        first, again = [await sampled(engine, request(3)) for _ in range(2)]
    finally:
        await engine.stop()
    assert first == again
    places = {(c.prompt_index, c.sample_index) for c in first}
    assert places == {(p, s) for p in range(3) for s in range(2)}
    assert all(4 <= len(c.token_ids) == len(c.logprobs) <= 8 for c in first)


@pytest.mark.parametrize("on_swap", ["finish", "continue"])
async def test_weights_wait_for_the_request_under_way_or_do_not(
    tiny_model_folder: Path, on_swap: Literal["finish", "continue"]
) -> None:
    engine = SimulatedEngine(tiny_model_folder, Pace(0.0005), on_swap)
    engine.start()
    try:
        asking = asyncio.create_task(sampled(engine, request(1, tokens=400)))
        for _ in range(5):
            await asyncio.sleep(0)  # until it is under way
        await engine.apply((), LoadedWeights("run", 1, 2, b"new"))
        assert asking.done() is (on_swap == "finish")
        versions = {c.weights_spans[-1].weights_version for c in await asking}
    finally:
        await engine.stop()
    assert versions == {0 if on_swap == "finish" else 2}


async def test_a_request_that_is_dropped_frees_the_engine(tiny_model_folder: Path) -> None:
    engine = SimulatedEngine(tiny_model_folder, Pace(1000.0))
    engine.start()
    dropped = asyncio.create_task(sampled(engine, request(1)))
    await asyncio.sleep(0)
    dropped.cancel()
    await asyncio.gather(dropped, return_exceptions=True)
    async with asyncio.timeout(5):
        await engine.apply((), LoadedWeights("run", 1, 1, b"new"))
    await engine.stop()


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"update_seconds": 1.0}, 2 + 4 + 1.0),
        ({"update_seconds": 1.0, "staleness": 1}, 3.5),
        ({"update_seconds": 5.0, "staleness": 1}, 5.5),
        ({"update_seconds": 5.0, "staleness": 2}, 5.0),
        ({"update_seconds": 0.0, "staleness": 9}, 2.0),
    ],
)
def test_a_step_takes_its_longest_resource_or_its_share_of_a_batch_from_begin_to_publish(
    changes: dict[str, Any], seconds: float
) -> None:
    job = Job(
        batches=1, turns=2, tokens=10, services=Services(token_seconds=0.1, score_seconds=2.0)
    )
    assert calculated(replace(job, **changes)) == pytest.approx(seconds)


def test_rewards_differ_within_a_node_and_are_the_same_everywhere() -> None:
    assert [reward_of(f"train/1/0/2.{number}") for number in range(3)] == [-1.0, -2.0, -3.0]
