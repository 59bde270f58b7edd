"""SIGINT and SIGTERM belong to the run while it trains, and to whoever had them afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

from antiphon.learner.control.signals import RunSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_first_signal_asks_for_a_stop_and_says_which(number: signal.Signals) -> None:
    asked: asyncio.Queue[str] = asyncio.Queue()
    with RunSignals() as signals:
        signals.connect(asked.put_nowait)
        os.kill(os.getpid(), number)
        async with asyncio.timeout(5):
            assert await asked.get() == number.name
    assert signals.received is number


async def test_a_signal_that_came_before_somebody_listened_is_not_lost() -> None:
    asked: asyncio.Queue[str] = asyncio.Queue()
    with RunSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        signals.connect(asked.put_nowait)
        async with asyncio.timeout(5):
            assert await asked.get() == "SIGTERM"


def test_the_handlers_before_are_put_back() -> None:
    def mine(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with RunSignals():
            assert signal.getsignal(signal.SIGTERM) is not mine
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_forked_child_has_the_handlers_before() -> None:
    """A pool in a reward function ends its workers by SIGTERM and waits for them."""
    with RunSignals() as signals:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        assert signals.received is None


def test_afterwards_sigint_is_a_keyboard_interrupt_and_sigterm_the_exit_code_143() -> None:
    """S13: what the caller of train() sees."""
    signals = RunSignals()
    signals.raise_received()
    signals.received = signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        signals.raise_received()
    signals.received = signal.SIGTERM
    with pytest.raises(SystemExit) as ended:
        signals.raise_received()
    assert ended.value.code == 143


def test_the_second_signal_ends_the_process_at_once_after_the_last_act() -> None:
    """S13: a second Ctrl-C does not wait for anything."""
    script = """
import os, signal, sys
from antiphon.learner.control.signals import RunSignals
with RunSignals(lambda: os.write(1, b"last act")):
    os.kill(os.getpid(), signal.SIGINT)
    os.write(1, b"still here, ")
    os.kill(os.getpid(), signal.SIGINT)
    os.write(1, b"never")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, b"still here, last act")


def test_training_off_the_main_thread_is_refused() -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with RunSignals():
                pass
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="worker")
    thread.start()
    thread.join()
    assert "must run on the main thread" in str(errors[0])
    assert "'worker'" in str(errors[0])
