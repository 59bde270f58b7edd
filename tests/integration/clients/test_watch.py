"""`antiphon watch` as a process: it follows a run and ends with it."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.clients.servers import abort, serving, within
from tests.integration.clients.test_learner import EVENTS, RUN, Learner, tells

from antiphon.clients.types import RunEvent, RunState


async def watching(address: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from antiphon.clients.cli import main; main()",
        "watch",
        address,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def watch(address: str, *arguments: str) -> tuple[int | None, str, str]:
    process = await watching(address, *arguments)
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


async def test_a_learner_that_is_not_up_yet_is_waited_for_and_that_is_said(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'learner.sock'}"
    process = await watching(address)
    assert process.stderr is not None
    said = (await within(process.stderr.readline(), 60)).decode()
    assert (
        said == f"waiting for a learner at {address}, for up to 300 s; nobody answers there yet\n"
    )
    async with serving(Learner(tells).register, address):
        output, errors = await within(process.communicate(), 60)
    assert (process.returncode, errors) == (0, b"")
    assert len(output.splitlines()) == len(EVENTS)


async def test_a_learner_that_does_not_come_is_given_up_in_a_sentence(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'learner.sock'}"
    code, output, errors = await watch(address, "--wait", "0.1")
    assert (code, output) == (1, "")
    waits, given_up = errors.splitlines()
    assert waits.startswith(f"waiting for a learner at {address}")
    assert given_up.startswith(
        f"antiphon: no learner has answered at {address} for 0.1 s (--wait); start the run, or "
    )


@pytest.mark.parametrize("address_given", ["nonsense", "http://localhost:1"])
async def test_an_address_of_no_known_form_is_told_in_a_line(address_given: str) -> None:
    code, _, errors = await watch(address_given)
    assert code == 1
    assert address_given in errors
    assert "Traceback" not in errors
