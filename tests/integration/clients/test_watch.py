"""`antiphon watch` as a process: it follows a run and ends with it."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.integration.clients.servers import abort, serving, within
from tests.integration.clients.test_learner import EVENTS, RUN, Learner, tells

from antiphon.clients.types import RunEvent, RunState


async def watch(address: str, *arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from antiphon.clients.cli import main; main()",
        "watch",
        address,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await within(process.communicate(), 60)
    return process.returncode, output.decode(), errors.decode()


async def test_a_run_is_followed_in_lines_through_a_break_and_to_its_end(address: str) -> None:
    async def breaks(after: int, context: Any) -> AsyncIterator[RunEvent]:
        for event in EVENTS[:2]:
            yield event
        await abort(context, grpc.StatusCode.UNAVAILABLE)

    async with serving(Learner(breaks, tells).register, address) as target:
        code, output, errors = await watch(target)
    assert (code, errors) == (0, "")
    assert [line.split("  ", 1)[1] for line in output.splitlines()] == [
        "training  epoch 1/2  prompt 0/8  0 joint actions",
        "after 4 joint actions  turn_1/reward_mean=0.5",
        "hello",
        "finished  epoch 1/2  prompt 0/8  0 joint actions",
    ]


async def test_a_failed_run_is_told_and_fails_the_command() -> None:
    failed = dataclasses.replace(RUN, state=RunState.FAILED, error="the reward raised ValueError")

    async def fails(after: int, context: Any) -> AsyncIterator[RunEvent]:
        yield RunEvent(1, 0.0, failed)

    async with serving(Learner(fails).register) as target:
        code, _, errors = await watch(target)
    assert code == 1
    assert "the reward raised ValueError" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("address_given", ["nonsense", "http://localhost:1"])
async def test_an_address_of_no_known_form_is_told_in_a_line(address_given: str) -> None:
    code, _, errors = await watch(address_given)
    assert code == 1
    assert address_given in errors
    assert "Traceback" not in errors
