"""How long a service that another run holds is waited for."""

from __future__ import annotations

import grpc
import pytest

from antiphon.clients.errors import CallError
from antiphon.learner.weights.lease import LeaseWait


def held(left: float | str, *, address: str = "a:1") -> CallError:
    return CallError(
        grpc.StatusCode.FAILED_PRECONDITION,
        "no",
        address=address,
        rpc="PushWeights",
        reason="RUN_LEASE_HELD",
        metadata={"run_id": "old", "lease_seconds_left": str(left)},
    )


class World:
    """A clock that sleep moves, and what the user was told."""

    def __init__(self, longest: float) -> None:
        self.now = 100.0
        self.said: list[str] = []
        self.wait = LeaseWait(
            2, longest=longest, note=self.said.append, sleep=self.sleep, now=lambda: self.now
        )

    async def sleep(self, seconds: float) -> None:
        self.now += seconds + 0.01


async def test_a_lease_is_waited_for_as_long_as_it_lasts_and_the_user_is_told_once() -> None:
    world = World(longest=300)
    assert await world.wait.ended(held("41.5"))
    assert world.now == pytest.approx(141.51)
    assert await world.wait.ended(held("0.2"))  # the other side's clock is a little behind
    assert world.said == [
        "waiting for agent 2's generation service at a:1, which run old has for another 42 s (its "
        "lease), unless that run calls it again"
    ]


async def test_a_run_that_calls_again_is_not_waited_for_any_longer() -> None:
    world = World(longest=300)
    assert await world.wait.ended(held(20))
    assert not await world.wait.ended(held(55))
    assert world.now == pytest.approx(120.01)


async def test_a_call_that_a_dead_run_left_open_may_renew_its_lease_once() -> None:
    """A full lease is left while a call is under way, and once more when it is given up."""
    world = World(longest=300)
    assert await world.wait.ended(held(60))
    assert await world.wait.ended(held(60))
    assert not await world.wait.ended(held(60))


@pytest.mark.parametrize("left", [301.5, "soon", "nan", "inf"])
async def test_a_lease_that_is_too_long_or_not_told_is_not_waited_for(left: float | str) -> None:
    world = World(longest=300)
    assert not await world.wait.ended(held(left))
    assert (world.now, world.said) == (100.0, [])


async def test_every_service_is_waited_for_by_itself() -> None:
    world = World(longest=300)
    assert await world.wait.ended(held(30))
    assert await world.wait.ended(held(50, address="b:1"))
    assert len(world.said) == 2
