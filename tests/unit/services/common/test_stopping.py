"""How a process hears that it should end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from tests.support.processes import wait_until

from antiphon.services.common.stopping import StopSignals


@pytest.fixture(autouse=True)
def handlers_are_put_back() -> Iterator[None]:
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    yield
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before
    assert signal.set_wakeup_fd(wakeup) == wakeup


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_request_to_stop(number: signal.Signals) -> None:
    with StopSignals() as stop:
        os.kill(os.getpid(), number)
        assert asyncio.run(asyncio.wait_for(stop.wait(), 20)) == number.name
        assert stop.exit_code == 0


def test_a_signal_is_heard_though_user_code_took_the_wakeups() -> None:
    with StopSignals() as stop:
        mine = signal.set_wakeup_fd(-1)
        assert mine != -1
        os.kill(os.getpid(), signal.SIGTERM)
        assert asyncio.run(asyncio.wait_for(stop.wait(), 20)) == "SIGTERM"


def test_other_signals_are_none_of_its_business() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
            stop.request("asked", 70)
            assert asyncio.run(asyncio.wait_for(stop.wait(), 20)) == "asked"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [signal.SIGUSR1]


def test_the_first_request_counts() -> None:
    with StopSignals() as stop:
        stop.request("first", 70)
        stop.request("second", 0)
        assert asyncio.run(asyncio.wait_for(stop.wait(), 20)) == "first"
        assert stop.exit_code == 70


def test_a_signal_after_another_request_is_the_first_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A parent that closes its child's standard input and sends SIGTERM lets it end in order."""
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    with StopSignals() as stop:
        stop.request("standard input ended")
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: stop.signalled, timeout=20, what="the signal is seen")
        assert left == []
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: bool(left), timeout=20, what="the second signal ends the process")
    assert left == [128 + signal.SIGTERM]


def test_a_child_ignores_ctrl_c() -> None:
    reader, writer = os.pipe()
    stdin = os.dup(0)
    os.dup2(reader, 0)
    try:
        with StopSignals(exit_with_parent=True) as stop:
            os.kill(os.getpid(), signal.SIGINT)
            os.close(writer)
            reason = asyncio.run(asyncio.wait_for(stop.wait(), 20))
            assert "parent is gone" in reason
    finally:
        os.dup2(stdin, 0)
        os.close(reader)
        os.close(stdin)


def test_a_forked_child_keeps_none_of_it() -> None:
    """A pool in a user's function ends its workers by SIGTERM."""
    with StopSignals() as stop:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
        assert asyncio.run(asyncio.wait_for(stop.wait(), 5)) == "SIGINT"
