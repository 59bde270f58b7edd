"""Calls of a user's function from the event loop: on the main thread, in time, told to all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from prometheus_client import Counter, Gauge, Histogram

from antiphon.clients import tracing
from antiphon.clients.waiting import progressed
from antiphon.services.common.errors import UserFunctionTimeoutError
from antiphon.services.common.main_thread import CallTimeoutError, MainThread

logger = logging.getLogger(__name__)

T = TypeVar("T")

CALLS = Counter(
    "antiphon_user_function_calls_total",
    "Calls of the user's function, by outcome: ok, failed or timeout.",
    ("function", "outcome"),
)
IN_FLIGHT = Gauge(
    "antiphon_user_function_in_flight",
    "Calls of the user's function under way, those that wait for the main thread included.",
    ("function",),
)
SECONDS = Histogram(
    "antiphon_user_function_seconds",
    "Time from asking the user's function to its answer, waiting for the main thread included.",
    ("function",),
    buckets=(0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300),
)


class UserCalls:
    """Runs a user's function.

    Args:
        main_thread: Where it runs, one call at a time.
        name: The function's name.
        timeout: Seconds that one call may take; None for no limit.
        on_hung: Told of a call that took longer, so that the process can be replaced.
    """

    def __init__(
        self,
        main_thread: MainThread,
        *,
        name: str,
        timeout: float | None,
        on_hung: Callable[[UserFunctionTimeoutError], None],
    ) -> None:
        self._main_thread = main_thread
        self._name = name
        self._timeout = timeout
        self._on_hung = on_hung
        for outcome in ("ok", "failed", "timeout"):
            CALLS.labels(name, outcome)
        IN_FLIGHT.labels(name)

    async def run(self, call: Callable[[], T], ids: Sequence[str]) -> T:
        """Makes one call, for the joint actions `ids`.

        Raises:
            UserFunctionError: From `call`, or because it took too long.
        """
        began = time.perf_counter()
        what = f"{self._name} for joint action {', '.join(ids)}"
        outcome = "failed"
        try:
            with tracing.span(self._name), IN_FLIGHT.labels(self._name).track_inprogress():
                result = await self._main_thread.run(call, timeout=self._timeout, what=what)
            outcome = "ok"
            progressed()
        except CallTimeoutError as error:
            outcome = "timeout"
            hung = UserFunctionTimeoutError(
                self._name, f"did not return within {error.seconds:g} s", joint_action_ids=ids
            )
            self._on_hung(hung)
            raise hung from error
        finally:
            CALLS.labels(self._name, outcome).inc()
            SECONDS.labels(self._name).observe(time.perf_counter() - began)
        return result


def log_call(function: str, ids: tuple[str, ...]) -> None:
    """Says what is about to be called: the last line of a process that the call has ended."""
    logger.info("calling %s for joint action %s", function, ", ".join(ids))
