"""User code on the main thread while the event loop has a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from types import FrameType

import pytest

from antiphon.services.common.main_thread import CallTimeoutError, MainThread


def test_calls_run_on_this_thread_and_the_loop_on_another() -> None:
    main = MainThread()

    async def scenario() -> tuple[int, int]:
        there = await main.run(threading.get_ident, timeout=None, what="ident")
        return there, threading.get_ident()

    called_on, loop_on = main.serve(scenario)
    assert called_on == threading.get_ident()
    assert loop_on != threading.get_ident()


def test_the_loop_goes_on_while_a_call_blocks() -> None:
    """S15: nothing that the loop does waits for user code."""
    main = MainThread()
    begun, release = threading.Event(), threading.Event()

    def hold() -> bool:
        begun.set()
        return release.wait(20)

    async def scenario() -> list[str]:
        happened = []
        call = asyncio.create_task(main.run(hold, timeout=None, what="wait"))
        await asyncio.to_thread(begun.wait, 20)
        happened.append(f"{main.current} holds")
        release.set()
        assert await call
        happened.append("released")
        return happened

    assert main.serve(scenario) == ["wait holds", "released"]


def test_calls_run_one_at_a_time_in_order() -> None:
    main = MainThread()
    running: list[int] = []
    order: list[int] = []

    def call(number: int) -> int:
        running.append(number)
        assert running == [number]
        order.append(number)
        running.remove(number)
        return number

    async def scenario() -> list[int]:
        calls = [main.run(lambda n=n: call(n), timeout=None, what="") for n in range(20)]  # type: ignore[misc]
        return await asyncio.gather(*calls)

    assert main.serve(scenario) == list(range(20)) == order


def test_exceptions_reach_whoever_called_and_whoever_served() -> None:
    main = MainThread()

    def broken() -> None:
        raise KeyError("mine")

    async def scenario() -> str:
        with pytest.raises(KeyError, match="mine"):
            await main.run(broken, timeout=5, what="broken")
        raise ValueError("the coroutine's own")

    with pytest.raises(ValueError, match="the coroutine's own"):
        main.serve(scenario)


def test_a_timeout_error_of_user_code_is_not_the_calls_timeout() -> None:
    main = MainThread()

    def broken() -> None:
        raise TimeoutError("socket")

    async def scenario() -> None:
        await main.run(broken, timeout=5, what="broken")

    with pytest.raises(TimeoutError, match="socket"):
        main.serve(scenario)


@pytest.mark.parametrize(
    "hang",
    [
        lambda: time.sleep(1000),
        lambda: threading.Event().wait(),
        lambda: [None for _ in iter(int, 1)],
    ],
    ids=["sleep", "wait", "busy"],
)
def test_a_call_that_never_returns_fails_by_name_and_is_interrupted(hang: object) -> None:
    """U7: the thread is free again afterwards."""
    main = MainThread(stuck_seconds=60)

    async def scenario() -> str:
        with pytest.raises(CallTimeoutError, match=r"judge for j1 did not return within 0\.05 s"):
            await main.run(hang, timeout=0.05, what="judge for j1")  # type: ignore[arg-type]
        return await main.run(lambda: "free", timeout=30, what="next")

    assert main.serve(scenario) == "free"


def test_except_exception_in_user_code_does_not_catch_the_interruption() -> None:
    """U7"""
    main = MainThread(stuck_seconds=60)

    def stubborn() -> None:
        try:
            threading.Event().wait()
        except Exception:  # noqa: BLE001
            threading.Event().wait()

    async def scenario() -> str:
        with pytest.raises(CallTimeoutError):
            await main.run(stubborn, timeout=0.05, what="stubborn")
        return await main.run(lambda: "free", timeout=30, what="next")

    assert main.serve(scenario) == "free"


def test_a_call_still_running_when_the_coroutine_ends_is_interrupted() -> None:
    main = MainThread(stuck_seconds=60)
    begun = threading.Event()

    def hang() -> None:
        begun.set()
        threading.Event().wait()

    async def scenario() -> str:
        call = asyncio.create_task(main.run(hang, timeout=None, what="hang"))
        await asyncio.to_thread(begun.wait, 20)
        call.cancel()
        return "ended"

    assert main.serve(scenario) == "ended"


def test_a_cancelled_call_that_has_not_begun_never_begins() -> None:
    main = MainThread()
    begun, release = threading.Event(), threading.Event()
    called: list[str] = []

    def hold() -> bool:
        begun.set()
        return release.wait(20)

    async def scenario() -> None:
        first = asyncio.create_task(main.run(hold, timeout=None, what="first"))
        second = asyncio.create_task(main.run(lambda: called.append("x"), timeout=None, what="2nd"))
        await asyncio.to_thread(begun.wait, 20)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        release.set()
        await first
        await main.run(lambda: None, timeout=None, what="third")

    main.serve(scenario)
    assert called == []


def test_user_code_may_use_alarms() -> None:
    """U6: signal handlers of user code run where it runs."""
    main = MainThread()

    def with_alarm() -> str:
        def ring(number: int, frame: FrameType | None) -> None:
            raise TimeoutError("rang")

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        try:
            threading.Event().wait(30)
        except TimeoutError as error:
            return str(error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        return "did not ring"

    async def scenario() -> str:
        return await main.run(with_alarm, timeout=60, what="with_alarm")

    assert main.serve(scenario) == "rang"


def test_a_keyboard_interrupt_ends_the_coroutine_first() -> None:
    main = MainThread()
    ended: list[str] = []

    def pressed() -> None:
        raise KeyboardInterrupt

    async def scenario() -> None:
        try:
            with contextlib.suppress(RuntimeError):
                await main.run(pressed, timeout=30, what="pressed")
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        main.serve(scenario)
    assert ended == ["cleaned up"]


def test_sys_exit_in_a_call_does_not_end_the_loop() -> None:
    main = MainThread()

    def leave() -> None:
        raise SystemExit(3)

    async def scenario() -> str:
        with pytest.raises(RuntimeError, match="leave raised SystemExit"):
            await main.run(leave, timeout=30, what="leave")
        return "goes on"

    assert main.serve(scenario) == "goes on"


def test_the_interrupting_signals_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGURG)

    async def scenario() -> object:
        return signal.getsignal(signal.SIGURG)

    assert MainThread().serve(scenario) is not before
    assert signal.getsignal(signal.SIGURG) is before
