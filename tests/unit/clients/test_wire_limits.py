"""Fields that are too large, or that could forge a log line, are refused by their path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message
from tests.unit.clients.samples import GENERATE_REQUEST, HEADER, JOINT_ACTION, SCORED, TASK

from antiphon.clients import wire
from antiphon.clients.types import FieldError
from antiphon.clients.wire.checks import MAX_ID_LENGTH
from antiphon.clients.wire.generation import MAX_SAMPLES

SCORE = wire.score_request_to_proto("run", [TASK], [JOINT_ACTION])
TRANSITION = wire.transition_request_to_proto("run", [TASK], [SCORED])
GENERATE = wire.generate_request_to_proto(GENERATE_REQUEST)
PUSH = wire.push_request_to_proto(HEADER)
STATUS = wire.push_status_request_to_proto(HEADER)
READ: dict[type[Message], Callable[[Any], object]] = {
    type(SCORE): wire.score_request_from_proto,
    type(TRANSITION): wire.transition_request_from_proto,
    type(GENERATE): wire.generate_request_from_proto,
    type(PUSH): wire.push_request_from_proto,
    type(STATUS): wire.push_status_request_from_proto,
}
LONG, FORGED = "x" * (MAX_ID_LENGTH + 1), "run\n2026-01-01 INFO antiphon: all is well"


def changed(message: Message, field: str, value: Any) -> Any:
    """A copy with another value at a path such as `joint_actions[0].id`."""
    copy = type(message)()
    copy.CopyFrom(message)
    place: Any = copy
    *path, last = field.replace("[0]", ".0").split(".")
    for step in path:
        place = place[int(step)] if step.isdigit() else getattr(place, step)
    if isinstance(value, list):
        del getattr(place, last)[:]
        getattr(place, last).extend(value)
    else:
        setattr(place, last, value)
    return copy


@pytest.mark.parametrize("value", [LONG, FORGED, ""], ids=["long", "forged", "empty"])
@pytest.mark.parametrize(
    ("message", "field"),
    [
        (SCORE, "run_id"),
        (SCORE, "tasks[0].id"),
        (SCORE, "joint_actions[0].id"),
        (TRANSITION, "run_id"),
        (TRANSITION, "joint_actions[0].joint_action.id"),
        (TRANSITION, "joint_actions[0].score.joint_action_id"),
        (GENERATE, "run_id"),
        (PUSH, "header.run_id"),
        (STATUS, "run_id"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_over_a_limit_is_refused_by_its_path(
    message: Message, field: str, value: str
) -> None:
    read = READ[type(message)]
    read(message)
    with pytest.raises(FieldError) as raised:
        read(changed(message, field, value))
    assert raised.value.field == field
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("length", [1, MAX_ID_LENGTH])
def test_an_id_at_the_limit_is_taken(length: int) -> None:
    run, _, _ = wire.score_request_from_proto(changed(SCORE, "run_id", "é" * length))
    assert run == "é" * length


def test_a_request_for_too_many_completions_is_refused() -> None:
    most = changed(GENERATE, "prompts[0].seeds", [0] * MAX_SAMPLES)
    del most.prompts[1:]
    wire.generate_request_from_proto(most)
    most.prompts[0].seeds.append(0)
    with pytest.raises(FieldError, match=r"prompts.seeds: got 262145 .* at most 262144"):
        wire.generate_request_from_proto(most)


@pytest.mark.parametrize(
    ("message", "field"),
    [(PUSH, "header.digest"), (PUSH, "header.base_digest"), (STATUS, "digest")],
)
def test_digests_have_their_size(message: Message, field: str) -> None:
    with pytest.raises(FieldError) as raised:
        READ[type(message)](changed(message, field, b"x" * 33))
    assert raised.value.field == field
