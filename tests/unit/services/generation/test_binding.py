"""Who may sample and push what: the rules as a table of calls and answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from antiphon.clients.types import FieldError, LoadedWeights, PushHeader, PushKind
from antiphon.services.common.errors import ServiceError
from antiphon.services.generation.binding import Binding, PushDecision

LEASE = 60.0
START = LoadedWeights(digest=b"start")
NOTHING = LoadedWeights()
OK, TAKE, HARMLESS = "ok", PushDecision.TAKE, PushDecision.ALREADY_APPLIED
HELD, SUPERSEDED = "RUN_LEASE_HELD", "INCARNATION_SUPERSEDED"
MISSING, FOREIGN = "WEIGHTS_MISSING", "WEIGHTS_FOREIGN"
CONFLICT, BASE = "PUSH_VERSION_CONFLICT", "PUSH_BASE_MISMATCH"


def loaded(version: int, digest: bytes = b"d", run: str = "a", incarnation: int = 1) -> Any:
    return LoadedWeights(run, incarnation, version, digest)


def reason_of(error: ServiceError) -> str:
    assert error.code is grpc.StatusCode.FAILED_PRECONDITION
    return error.reason


@dataclass
class World:
    weights: LoadedWeights = START
    agent: int | None = None
    now: float = 1000.0
    binding: Binding = field(init=False)

    def __post_init__(self) -> None:
        self.binding = Binding(
            lease_seconds=LEASE, clock=lambda: self.now, agent=self.agent, boot_id="boot"
        )

    def generate(
        self, *, run: str = "a", incarnation: int = 1, minimum: int = 0, agent: int = 0
    ) -> str:
        try:
            self.binding.admit_generate(
                self.weights, run_id=run, incarnation=incarnation, agent=agent, min_version=minimum
            )
        except ServiceError as error:
            return reason_of(error)
        return OK

    def push(
        self,
        version: int,
        digest: bytes = b"d",
        *,
        run: str = "a",
        incarnation: int = 1,
        kind: PushKind = PushKind.FULL,
        base: tuple[int, bytes] = (0, b""),
        agent: int = 0,
    ) -> str | PushDecision:
        header = PushHeader(run, incarnation, agent, version, digest, kind, (), *base)
        try:
            base_digest = b"model" if self.weights.digest else b""
            return self.binding.admit_push(self.weights, header, base_digest=base_digest)
        except ServiceError as error:
            return reason_of(error)


@pytest.mark.parametrize(
    ("weights", "call", "answer"),
    [
        (START, {}, OK),
        (START, {"minimum": 1}, MISSING),
        (NOTHING, {}, MISSING),
        (loaded(3), {"minimum": 3}, OK),
        (loaded(3), {"minimum": 2}, OK),
        (loaded(3), {"minimum": 4}, MISSING),
        (loaded(3), {"incarnation": 2}, FOREIGN),
        (loaded(3, incarnation=2), {"incarnation": 1, "minimum": 9}, FOREIGN),
        (loaded(3, run="b"), {}, FOREIGN),
    ],
)
def test_what_a_generate_may_sample(
    weights: LoadedWeights, call: dict[str, Any], answer: str
) -> None:
    assert World(weights).generate(**call) == answer


@pytest.mark.parametrize(
    ("weights", "version", "call", "answer"),
    [
        (START, 1, {}, TAKE),
        (START, 41, {}, TAKE),
        (NOTHING, 1, {}, TAKE),
        (loaded(4), 5, {}, TAKE),
        (loaded(4), 9, {}, TAKE),
        (loaded(4), 4, {}, HARMLESS),
        (loaded(4), 4, {"digest": b"other"}, CONFLICT),
        (loaded(4), 3, {}, CONFLICT),
        (loaded(4), 4, {"incarnation": 2}, TAKE),
        (loaded(4), 4, {"incarnation": 2, "digest": b"other"}, TAKE),
        (loaded(4), 1, {"incarnation": 2}, TAKE),
        (loaded(4, run="b"), 1, {}, TAKE),
        (loaded(4), 5, {"kind": PushKind.DELTA, "base": (4, b"d")}, TAKE),
        (loaded(4), 5, {"kind": PushKind.DELTA, "base": (4, b"other")}, BASE),
        (loaded(4), 5, {"kind": PushKind.ADAPTER, "base": (0, b"model")}, TAKE),
        (loaded(4), 5, {"kind": PushKind.ADAPTER, "base": (4, b"d")}, BASE),
        (START, 1, {"kind": PushKind.ADAPTER, "base": (0, b"model")}, TAKE),
        (NOTHING, 1, {"kind": PushKind.ADAPTER, "base": (0, b"")}, BASE),
        (START, 1, {"kind": PushKind.DELTA, "base": (0, b"start")}, TAKE),
        (NOTHING, 1, {"kind": PushKind.DELTA, "base": (0, b"")}, BASE),
        (loaded(4), 5, {"kind": PushKind.FULL, "base": (3, b"wrong")}, TAKE),
    ],
)
def test_what_a_push_may_replace(
    weights: LoadedWeights, version: int, call: dict[str, Any], answer: object
) -> None:
    assert World(weights).push(version, **call) == answer


def test_a_higher_incarnation_takes_over_and_the_lower_one_is_told() -> None:
    """S7: by a push, or where nothing was pushed yet by a Generate."""
    for takeover, weights in (("push", loaded(41)), ("generate", START)):
        world = World(weights)
        assert world.generate() == OK
        if takeover == "push":
            assert world.push(41, b"other bytes", incarnation=2) == TAKE
        else:
            assert world.generate(incarnation=2) == OK
        assert world.binding.incarnation == 2
        assert world.generate() == SUPERSEDED
        assert world.push(42) == SUPERSEDED
        with pytest.raises(ServiceError) as caught:
            world.binding.check_current("a", 1)
        assert caught.value.metadata == {"incarnation": "2"}
        world.binding.check_current("a", 2)
        world.weights = loaded(41, b"other bytes", incarnation=2)
        assert world.generate(incarnation=2, minimum=41) == OK


def test_a_generate_that_is_refused_does_not_take_over() -> None:
    """S7: whoever may only sample cannot end a run with an incarnation that it made up."""
    world = World(loaded(41))
    assert world.generate(minimum=41) == OK
    assert world.generate(incarnation=2**62) == FOREIGN
    assert world.generate(minimum=41) == OK
    assert world.push(42) == TAKE
    unpushed = World(START)
    assert unpushed.generate(incarnation=2**62, minimum=1) == MISSING
    assert unpushed.binding.run_id == ""


def test_another_run_waits_until_the_bound_one_has_been_silent_for_the_lease() -> None:
    world = World(loaded(2))
    assert world.generate() == OK
    world.now += LEASE - 1
    assert world.generate(run="b") == HELD
    assert world.push(1, run="b") == HELD
    assert world.binding.run_id == "a"
    world.now += 2
    assert world.generate(run="b") == FOREIGN
    assert world.binding.run_id == "a"
    assert world.push(1, run="b") == TAKE
    assert (world.binding.run_id, world.binding.incarnation) == ("b", 1)
    assert world.push(3) == HELD
    with pytest.raises(ServiceError) as caught:
        world.binding.check_current("a", 9)
    assert caught.value.reason == HELD
    assert caught.value.metadata == {"run_id": "b", "lease_seconds_left": "60.000"}


def test_every_call_renews_the_lease_and_a_call_under_way_keeps_it() -> None:
    world = World()
    assert world.generate() == OK
    world.now += LEASE - 1
    assert world.push(1) == TAKE
    world.now += LEASE - 1
    assert world.generate(run="b") == HELD
    with world.binding.call("a"):
        world.now += 10 * LEASE
        assert world.generate(run="b") == HELD
    world.now += LEASE - 1
    assert world.generate(run="b") == HELD
    world.now += 2
    assert world.generate(run="b") == OK


def test_the_learner_that_drives_the_run_keeps_the_lease_and_nobody_else_does() -> None:
    world = World()
    assert world.push(1, incarnation=2) == TAKE
    for run, incarnation, left in (("b", 9, 1), ("a", 1, 1), ("a", 2, LEASE), ("a", 3, LEASE)):
        world.binding.renew("a", 2)
        world.now += LEASE - 1
        world.binding.renew(run, incarnation)
        assert world.binding.lease_seconds_left == left
    assert (world.binding.run_id, world.binding.incarnation) == ("a", 2)


def test_refused_calls_of_others_do_not_renew_the_lease_or_move_the_incarnation() -> None:
    world = World()
    assert world.generate(incarnation=3) == OK
    world.now += LEASE - 1
    assert world.generate(incarnation=2) == SUPERSEDED
    assert world.push(1, run="b", incarnation=9) == HELD
    world.now += 2
    assert world.binding.lease_seconds_left == 0
    assert (world.binding.run_id, world.binding.incarnation) == ("a", 3)


def test_incarnations_of_another_run_start_anew() -> None:
    world = World()
    assert world.push(7, incarnation=7) == TAKE
    world.now += LEASE + 1
    assert world.push(1, run="b", incarnation=1) == TAKE
    assert world.binding.incarnation == 1


def test_a_run_without_pushes_gives_way_to_another_that_only_samples() -> None:
    world = World()
    assert world.generate() == OK
    world.now += LEASE + 1
    assert world.generate(run="b", agent=1) == OK
    assert world.binding.run_id == "b"


def test_the_agent_is_that_of_the_option_or_of_the_runs_first_call() -> None:
    fixed, free = World(agent=1), World()
    with pytest.raises(FieldError, match="agent: got 0, wanted 1"):
        fixed.generate(agent=0)
    assert fixed.binding.run_id == ""
    assert fixed.generate(agent=1) == OK
    assert free.push(1, agent=3) == TAKE
    with pytest.raises(FieldError, match=r"header\.agent: got 2, wanted 3"):
        free.push(2, agent=2, incarnation=5)
    assert free.binding.incarnation == 1


def test_refusals_say_what_is_loaded_and_wanted() -> None:
    world = World(loaded(3, b"\x01\x02"))
    with pytest.raises(ServiceError) as caught:
        world.binding.admit_generate(
            world.weights, run_id="a", incarnation=1, agent=0, min_version=5
        )
    assert caught.value.metadata == {
        "loaded_version": "3",
        "loaded_digest": "0102",
        "wanted_version": "5",
        "boot_id": "boot",
    }
    assert "version 3 is loaded, wanted at least 5" in caught.value.message
