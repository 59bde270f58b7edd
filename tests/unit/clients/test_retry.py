"""S5, S8: calls are made again on transient codes only, with pauses, and the root error stays."""

import grpc
import pytest

from antiphon.clients.errors import CallError
from antiphon.clients.retry import Attempts, RetryPolicy, call_with_retries

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def error(code: grpc.StatusCode = UNAVAILABLE, message: str = "away") -> CallError:
    return CallError(code, message, address="host:1", rpc="Score")


class Script:
    """A call that fails as scripted, then answers; and the pauses between."""

    def __init__(self, *failures: CallError) -> None:
        self.failures = list(failures)
        self.numbers: list[int] = []
        self.pauses: list[float] = []

    async def call(self, number: int) -> str:
        self.numbers.append(number)
        if self.failures:
            raise self.failures.pop(0)
        return "answer"

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def run(self, policy: RetryPolicy) -> str:
        return await call_with_retries(self.call, policy, sleep=self.sleep)


async def test_pauses_grow_up_to_the_longest() -> None:
    """S8: backoff."""
    script = Script(*[error()] * 5)
    policy = RetryPolicy(initial_backoff=1, max_backoff=5, multiplier=2, jitter=0)
    assert await script.run(policy) == "answer"
    assert script.pauses == [1, 2, 4, 5, 5]
    assert script.numbers == [1, 2, 3, 4, 5, 6]


def test_pauses_are_jittered_within_their_share() -> None:
    """S8: clients that fail together do not come back together."""
    policy = RetryPolicy(initial_backoff=8, max_backoff=8, jitter=0.5)
    pauses = {policy.pause(1) for _ in range(200)}
    assert len(pauses) > 100
    assert 4 <= min(pauses) < 5 < 7 < max(pauses) <= 8


def test_the_defaults_outlast_a_service_that_is_away_for_20_seconds() -> None:
    """S8: even where chance makes every pause as short as it can be."""
    policy = RetryPolicy()
    longest = [
        min(policy.max_backoff, policy.initial_backoff * policy.multiplier**n)
        for n in range(policy.attempts - 1)
    ]
    assert sum(longest) * (1 - policy.jitter) > 20


def test_pauses_stay_finite_after_thousands_of_failures() -> None:
    assert RetryPolicy(max_backoff=3, jitter=0).pause(100_000) == 3


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.CANCELLED,
    ],
)
async def test_a_permanent_code_is_raised_at_once(code: grpc.StatusCode) -> None:
    """S8: no second call, no pause."""
    script = Script(error(code, "wrong"))
    with pytest.raises(CallError, match="wrong") as failure:
        await script.run(RetryPolicy())
    assert failure.value.attempts == 1
    assert (script.numbers, script.pauses) == ([1], [])


async def test_attempts_end_and_the_root_error_is_told() -> None:
    """S5: bounded retries; what failed first is not lost behind what failed last."""
    script = Script(error(message="disk full"), error(message="gone"), error(message="gone"))
    with pytest.raises(CallError) as failure:
        await script.run(RetryPolicy(attempts=3))
    assert failure.value.attempts == 3
    assert len(script.pauses) == 2
    assert "gone" in str(failure.value)
    assert "disk full" in str(failure.value)
    assert "tried 3 times" in str(failure.value)


async def test_a_permanent_error_after_transient_ones_names_both() -> None:
    script = Script(error(message="away"), error(grpc.StatusCode.INTERNAL, "broken"))
    with pytest.raises(CallError) as failure:
        await script.run(RetryPolicy())
    assert failure.value.code is grpc.StatusCode.INTERNAL
    assert "away" in str(failure.value)


async def test_a_service_that_never_answers_is_not_asked_for_ever() -> None:
    """S5: deadlines have a smaller bound of their own, since each costs its whole length."""
    deadline = grpc.StatusCode.DEADLINE_EXCEEDED
    script = Script(*[error(deadline, "late")] * 9)
    with pytest.raises(CallError, match="late") as failure:
        await script.run(RetryPolicy(attempts=8, deadline_attempts=2))
    assert failure.value.attempts == 2


async def test_progress_starts_the_count_anew() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    policy = RetryPolicy(attempts=2, initial_backoff=1, jitter=0)
    attempts = Attempts(policy, sleep)
    for _ in range(5):
        await attempts.pause_after(error())
        attempts.progressed()
    assert pauses == [1] * 5
    assert attempts.number == 6
    await attempts.pause_after(error())
    with pytest.raises(CallError) as failure:
        await attempts.pause_after(error())
    assert failure.value.attempts == 7
