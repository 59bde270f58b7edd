"""Messages say what the values say, and messages that break the contract are refused by path."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import Message
from tests.unit.clients.samples import (
    CHAT,
    COMPLETION,
    GENERATE_REQUEST,
    HEADER,
    JOINT_ACTION,
    MISSING,
    SCORE,
    SCORED,
    TASK,
)

from antiphon.clients import wire
from antiphon.clients.types import (
    AgentAction,
    AgentStatus,
    BranchEnd,
    EngineCapabilities,
    FieldError,
    LoadedWeights,
    MetricsLogged,
    ModelInfo,
    NextPrompts,
    Note,
    PushKind,
    PushResult,
    PushState,
    PushStatus,
    RewardInfo,
    Run,
    RunEvent,
    RunState,
    SamplingParameters,
    StoredChunks,
    TensorDtype,
    TokenIds,
    TransitionResult,
    WeightsChunk,
)
from antiphon.v1 import common_pb2, generation_pb2, learner_pb2, reward_pb2, transition_pb2

LOADED = LoadedWeights("r", 2, 3, b"x" * 32)
RUN = Run(
    "r",
    2,
    RunState.PAUSED,
    "/runs/r",
    1,
    2,
    3,
    8,
    60,
    1_700_000_000.25,
    None,
    (AgentStatus(0, "m", 4, 9), AgentStatus(1, "n", 0, 0)),
)
MODEL = ModelInfo(
    "m",
    "transformers",
    49152,
    b"f" * 32,
    2048,
    (0, 2),
    LOADED,
    "r",
    2,
    "i",
    "b",
    EngineCapabilities(
        frozenset({PushKind.FULL, PushKind.DELTA}),
        True,
        True,
        False,
        True,
        64,
        frozenset({TensorDtype.BFLOAT16}),
    ),
    1024,
)


@pytest.mark.parametrize(
    ("value", "to_proto", "from_proto"),
    [
        ("text", wire.prompt_to_proto, wire.prompt_from_proto),
        ("", wire.prompt_to_proto, wire.prompt_from_proto),
        (CHAT, wire.prompt_to_proto, wire.prompt_from_proto),
        (TokenIds((0, 1, 2**32 - 1)), wire.prompt_to_proto, wire.prompt_from_proto),
        (TASK, wire.task_to_proto, wire.task_from_proto),
        (JOINT_ACTION, wire.joint_action_to_proto, wire.joint_action_from_proto),
        (SCORE, wire.score_to_proto, wire.score_from_proto),
        (MISSING, wire.score_to_proto, wire.score_from_proto),
        (replace(SCORE, value=0.0), wire.score_to_proto, wire.score_from_proto),
        (GENERATE_REQUEST, wire.generate_request_to_proto, wire.generate_request_from_proto),
        (
            replace(GENERATE_REQUEST, sampling=SamplingParameters(0.0, None, None, 1)),
            wire.generate_request_to_proto,
            wire.generate_request_from_proto,
        ),
        (COMPLETION, wire.completion_to_proto, wire.completion_from_proto),
        (
            replace(COMPLETION, full_logprobs=(), full_logprobs_temperature_1=()),
            wire.completion_to_proto,
            wire.completion_from_proto,
        ),
        (HEADER, wire.push_request_to_proto, wire.push_request_from_proto),
        (
            StoredChunks(1 << 22, (0, 2**64 - 1)),
            wire.push_request_to_proto,
            wire.push_request_from_proto,
        ),
        (
            WeightsChunk(3, 2**33, b"\x00\xff", 2**64 - 1),
            wire.push_request_to_proto,
            wire.push_request_from_proto,
        ),
        (
            PushResult(7, b"d" * 32, "i", "b", 0.125),
            wire.push_result_to_proto,
            wire.push_result_from_proto,
        ),
        (
            PushStatus(PushState.STAGED, (4, 0), LOADED),
            wire.push_status_to_proto,
            wire.push_status_from_proto,
        ),
        (MODEL, wire.model_info_to_proto, wire.model_info_from_proto),
        (RewardInfo("n"), wire.reward_info_to_proto, wire.reward_info_from_proto),
        (
            RewardInfo("n", "2", 0.0, 1.0, 8, 2),
            wire.reward_info_to_proto,
            wire.reward_info_from_proto,
        ),
        (
            TransitionResult("j", NextPrompts(("a", CHAT))),
            wire.transition_result_to_proto,
            wire.transition_result_from_proto,
        ),
        (
            TransitionResult("j", BranchEnd("solved")),
            wire.transition_result_to_proto,
            wire.transition_result_from_proto,
        ),
        (RUN, wire.run_to_proto, wire.run_from_proto),
        (replace(RUN, seconds_left=0.0), wire.run_to_proto, wire.run_from_proto),
        (
            RunEvent(1, 1_700_000_000.123456, RUN, 3),
            wire.run_event_to_proto,
            wire.run_event_from_proto,
        ),
        (
            RunEvent(2, 5.5, MetricsLogged(60, {"turn_1/reward_mean": 0.5})),
            wire.run_event_to_proto,
            wire.run_event_from_proto,
        ),
        (RunEvent(3, 0.0, Note("hi")), wire.run_event_to_proto, wire.run_event_from_proto),
    ],
)
def test_a_value_arrives_as_it_was_sent(
    value: Any, to_proto: Callable[[Any], Message], from_proto: Callable[[Any], Any]
) -> None:
    sent = to_proto(value)
    arrived = type(sent)()
    arrived.ParseFromString(sent.SerializeToString())
    assert from_proto(arrived) == value


def test_a_request_with_its_tasks_arrives_as_it_was_sent() -> None:
    score = wire.score_request_to_proto("r", [TASK], [JOINT_ACTION])
    transition = wire.transition_request_to_proto("r", [TASK], [SCORED])
    assert wire.score_request_from_proto(score) == ("r", {"t": TASK}, [JOINT_ACTION])
    assert wire.transition_request_from_proto(transition) == ("r", {"t": TASK}, [SCORED])
    assert wire.score_response_from_proto(wire.score_response_to_proto([SCORE, MISSING])) == [
        SCORE,
        MISSING,
    ]


def _mutated(message: Message, mutate: Callable[[Any], None]) -> Any:
    changed = type(message)()
    changed.CopyFrom(message)
    mutate(changed)
    return changed


def _refuses(convert: Callable[[Any], Any], message: Message, field: str) -> FieldError:
    with pytest.raises(FieldError) as refusal:
        convert(message)
    assert refusal.value.field == field
    return refusal.value


SCORE_REQUEST = wire.score_request_to_proto("r", [TASK], [JOINT_ACTION])


@pytest.mark.parametrize(
    ("mutate", "field"),
    [
        (lambda m: m.ClearField("run_id"), "run_id"),
        (lambda m: m.ClearField("joint_actions"), "joint_actions"),
        (lambda m: m.joint_actions.append(m.joint_actions[0]), "joint_actions"),
        (lambda m: m.tasks.append(m.tasks[0]), "tasks"),
        (lambda m: setattr(m.tasks[0], "id", ""), "tasks[0].id"),
        (lambda m: setattr(m.tasks[0], "item_json", b"[1]"), "tasks[0].item_json"),
        (lambda m: setattr(m.tasks[0], "item_json", b'{"a": NaN}'), "tasks[0].item_json"),
        (lambda m: setattr(m.tasks[0], "item_json", b"\xff"), "tasks[0].item_json"),
        (lambda m: setattr(m.joint_actions[0], "id", ""), "joint_actions[0].id"),
        (lambda m: setattr(m.joint_actions[0], "task_id", "x"), "joint_actions[0].task_id"),
        (lambda m: setattr(m.joint_actions[0], "turn", 0), "joint_actions[0].turn"),
        (lambda m: setattr(m.joint_actions[0], "turn", 3), "joint_actions[0].history"),
        (lambda m: setattr(m.joint_actions[0], "attempt", 0), "joint_actions[0].attempt"),
        (lambda m: setattr(m.joint_actions[0], "phase", 0), "joint_actions[0].phase"),
        (lambda m: setattr(m.joint_actions[0], "phase", 9), "joint_actions[0].phase"),
        (lambda m: m.joint_actions[0].ClearField("actions"), "joint_actions[0].actions"),
        (
            lambda m: m.joint_actions[0].actions[1].ClearField("prompt"),
            "joint_actions[0].actions[1].prompt",
        ),
        (
            lambda m: m.joint_actions[0].actions[0].prompt.token_ids.ids.append(1),
            "joint_actions[0].actions[0].prompt",
        ),
        (
            lambda m: m.joint_actions[0].history[0].actions.pop(),
            "joint_actions[0].history[0].actions",
        ),
    ],
)
def test_a_score_request_that_breaks_the_contract_is_refused_by_path(
    mutate: Callable[[Any], None], field: str
) -> None:
    _refuses(wire.score_request_from_proto, _mutated(SCORE_REQUEST, mutate), field)


def test_a_doubled_id_is_named() -> None:
    """S9: ids are told apart by name on the way in too."""
    doubled = wire.score_request_to_proto("r", [TASK], [JOINT_ACTION, JOINT_ACTION])
    refusal = _refuses(wire.score_request_from_proto, doubled, "joint_actions")
    assert "j" in str(refusal.got).split()


def test_a_score_of_another_joint_action_is_refused() -> None:
    request = wire.transition_request_to_proto("r", [TASK], [SCORED])
    request.joint_actions[0].score.joint_action_id = "k"
    _refuses(
        wire.transition_request_from_proto,
        request,
        "joint_actions[0].score.joint_action_id",
    )


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (common_pb2.Score(joint_action_id="j"), "scores[0]"),
        (common_pb2.Score(value=1.0), "scores[0].joint_action_id"),
        (common_pb2.Score(joint_action_id="j", missing_reason=""), "scores[0].missing_reason"),
        (
            common_pb2.Score(joint_action_id="j", value=1.0, info_json=b"7"),
            "scores[0].info_json",
        ),
    ],
)
def test_a_score_without_an_outcome_is_refused(message: common_pb2.Score, field: str) -> None:
    _refuses(wire.score_response_from_proto, reward_pb2.ScoreResponse(scores=[message]), field)


@pytest.mark.parametrize(
    "prompt",
    [
        common_pb2.Prompt(),
        common_pb2.Prompt(text=""),
        common_pb2.Prompt(token_ids=common_pb2.TokenIds(ids=[1])),
    ],
)
def test_a_next_prompt_that_says_nothing_names_its_agent(prompt: common_pb2.Prompt) -> None:
    """U5: an empty prompt is an error that says which agent."""
    prompts = [common_pb2.Prompt(text="a"), prompt]
    result = transition_pb2.TransitionResult(
        joint_action_id="j", next_prompts=transition_pb2.NextPrompts(prompts=prompts)
    )
    _refuses(
        wire.transition_response_from_proto,
        transition_pb2.TransitionResponse(results=[result]),
        "results[0].next_prompts.prompts[1]",
    )


def test_a_transition_result_without_an_outcome_is_refused() -> None:
    result = transition_pb2.TransitionResult(joint_action_id="j")
    _refuses(
        wire.transition_response_from_proto,
        transition_pb2.TransitionResponse(results=[result]),
        "results[0]",
    )


@pytest.mark.parametrize(
    ("mutate", "field"),
    [
        (lambda m: m.ClearField("run_id"), "run_id"),
        (lambda m: setattr(m, "incarnation", 0), "incarnation"),
        (lambda m: m.ClearField("prompts"), "prompts"),
        (lambda m: m.ClearField("sampling"), "sampling"),
        (lambda m: m.prompts[1].ClearField("seeds"), "prompts[1].seeds"),
        (lambda m: m.prompts[0].ClearField("prompt"), "prompts[0].prompt"),
        (
            lambda m: m.prompts[2].prompt.token_ids.ClearField("ids"),
            "prompts[2].prompt.token_ids",
        ),
        (
            lambda m: m.prompts[1].prompt.chat.ClearField("messages"),
            "prompts[1].prompt.chat.messages",
        ),
        (lambda m: setattr(m.sampling, "temperature", -0.1), "sampling.temperature"),
        (lambda m: setattr(m.sampling, "temperature", float("nan")), "sampling.temperature"),
        (lambda m: setattr(m.sampling, "temperature", float("inf")), "sampling.temperature"),
        (lambda m: setattr(m.sampling, "top_p", 0.0), "sampling.top_p"),
        (lambda m: setattr(m.sampling, "top_p", 1.5), "sampling.top_p"),
        (lambda m: setattr(m.sampling, "top_p", float("nan")), "sampling.top_p"),
        (lambda m: setattr(m.sampling, "top_k", 0), "sampling.top_k"),
        (lambda m: setattr(m.sampling, "max_new_tokens", 0), "sampling.max_new_tokens"),
    ],
)
def test_a_generate_request_that_breaks_the_contract_is_refused_by_path(
    mutate: Callable[[Any], None], field: str
) -> None:
    message = wire.generate_request_to_proto(GENERATE_REQUEST)
    _refuses(wire.generate_request_from_proto, _mutated(message, mutate), field)


def test_no_filter_is_told_apart_from_a_filter_of_zero() -> None:
    """L11: None means off for every sampling parameter, and is not sent as a number."""
    off = wire.generate_request_to_proto(
        replace(GENERATE_REQUEST, sampling=SamplingParameters(1.0, None, None, 4))
    )
    assert not off.sampling.HasField("top_k")
    assert not off.sampling.HasField("top_p")


@pytest.mark.parametrize(
    ("mutate", "field"),
    [
        (lambda m: m.ClearField("token_ids"), "completion.token_ids"),
        (lambda m: m.logprobs.pop(), "completion.logprobs"),
        (lambda m: m.kept_sizes.append(1), "completion.kept_sizes"),
        (lambda m: m.full_logprobs.pop(), "completion.full_logprobs"),
        (lambda m: m.logprobs.__setitem__(1, float("nan")), "completion.logprobs"),
        (lambda m: m.logprobs.__setitem__(1, float("-inf")), "completion.logprobs"),
        (lambda m: m.kept_sizes.__setitem__(1, 0), "completion.kept_sizes"),
        (lambda m: setattr(m, "finish_reason", 0), "completion.finish_reason"),
        (lambda m: m.ClearField("weights_spans"), "completion.weights_spans"),
        (lambda m: setattr(m.weights_spans[0], "start", 1), "completion.weights_spans"),
        (lambda m: setattr(m.weights_spans[1], "start", 0), "completion.weights_spans"),
        (lambda m: setattr(m.weights_spans[1], "start", 3), "completion.weights_spans"),
    ],
)
def test_a_completion_whose_lists_do_not_fit_is_refused_by_path(
    mutate: Callable[[Any], None], field: str
) -> None:
    message = wire.completion_to_proto(COMPLETION)
    _refuses(wire.completion_from_proto, _mutated(message, mutate), field)


@pytest.mark.parametrize(
    ("mutate", "field"),
    [
        (lambda m: m.ClearField("run_id"), "header.run_id"),
        (lambda m: setattr(m, "incarnation", 0), "header.incarnation"),
        (lambda m: setattr(m, "version", 0), "header.version"),
        (lambda m: setattr(m, "digest", b"d" * 31), "header.digest"),
        (lambda m: setattr(m, "kind", 0), "header.kind"),
        (lambda m: m.ClearField("tensors"), "header.tensors"),
        (lambda m: setattr(m.tensors[0], "name", "z"), "header.tensors"),
        (lambda m: setattr(m.tensors[0], "name", "b"), "header.tensors"),
        (lambda m: setattr(m.tensors[1], "name", ""), "header.tensors[1].name"),
        (lambda m: setattr(m.tensors[1], "dtype", 0), "header.tensors[1].dtype"),
        (lambda m: setattr(m.tensors[1], "checksum", b"c"), "header.tensors[1].checksum"),
        (lambda m: setattr(m, "kind", 2), "header.delta_sizes"),
        (lambda m: m.delta_sizes.append(1), "header.delta_sizes"),
    ],
)
def test_a_push_header_that_breaks_the_contract_is_refused_by_path(
    mutate: Callable[[Any], None], field: str
) -> None:
    message = wire.push_header_to_proto(HEADER)
    _refuses(wire.push_header_from_proto, _mutated(message, mutate), field)


def test_an_empty_part_of_a_push_is_refused() -> None:
    empty = generation_pb2.PushWeightsRequest()
    _refuses(wire.push_request_from_proto, empty, "part")
    chunk = generation_pb2.PushWeightsRequest(chunk=generation_pb2.WeightsChunk(tensor_index=1))
    _refuses(wire.push_request_from_proto, chunk, "chunk.data")


def test_a_push_query_names_the_push_of_its_header() -> None:
    query = wire.push_status_request_from_proto(wire.push_status_request_to_proto(HEADER))
    assert query == wire.PushQuery("r", 1, 7, b"d" * 32, PushKind.FULL)
    empty = generation_pb2.GetPushStatusRequest(run_id="r", version=1)
    _refuses(wire.push_status_request_from_proto, empty, "incarnation")


def test_push_kinds_of_a_later_version_are_left_out() -> None:
    message = wire.model_info_to_proto(MODEL)
    message.capabilities.push_kinds.append(17)
    assert wire.model_info_from_proto(message) == MODEL


def test_an_event_that_says_nothing_is_refused() -> None:
    _refuses(
        wire.run_event_from_proto,
        learner_pb2.WatchRunResponse(event=learner_pb2.RunEvent(sequence=1)),
        "event",
    )


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: wire.prompt_to_proto("a\ud800"), "prompt"),
        (
            lambda: wire.joint_action_to_proto(
                replace(JOINT_ACTION, actions=(AgentAction("p", "c\udfff"),))
            ),
            "joint_action.actions[0].completion",
        ),
        (lambda: wire.score_to_proto(replace(MISSING, missing_reason="\ud800")), "score"),
        (lambda: wire.completion_to_proto(replace(COMPLETION, text="\ud83d")), "completion.text"),
    ],
)
def test_text_that_utf_8_cannot_hold_names_its_field(
    build: Callable[[], Message], field: str
) -> None:
    with pytest.raises(FieldError) as refusal:
        build()
    assert refusal.value.field.startswith(field)


@pytest.mark.parametrize(
    "score",
    [replace(SCORE, missing_reason="why"), replace(MISSING, missing_reason=None)],
)
def test_a_score_has_a_value_or_a_reason_but_not_both(score: Any) -> None:
    with pytest.raises(FieldError):
        wire.score_to_proto(score)
