"""Prompts, tasks, joint actions and scores on the wire (`antiphon/v1/common.proto`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from antiphon.clients.items import decode_item, encode_item
from antiphon.clients.types import (
    AgentAction,
    Chat,
    ChatMessage,
    FieldError,
    JointAction,
    Phase,
    Prompt,
    Score,
    Task,
    TokenIds,
)
from antiphon.clients.wire.checks import (
    at,
    encodable,
    enum_from_proto,
    require,
    require_at_least,
    require_distinct,
    require_id,
    require_text,
)
from antiphon.v1 import common_pb2 as pb

PHASES = {pb.PHASE_TRAIN: Phase.TRAIN, pb.PHASE_EVAL: Phase.EVAL}
_PHASE_NUMBERS = {phase: number for number, phase in PHASES.items()}


def prompt_to_proto(prompt: Prompt, field: str = "prompt") -> pb.Prompt:
    """A prompt in whichever of its three forms it has."""
    if isinstance(prompt, str):
        return encodable(lambda: pb.Prompt(text=prompt), field)
    if isinstance(prompt, TokenIds):
        return pb.Prompt(token_ids=pb.TokenIds(ids=prompt.ids))
    return encodable(lambda: _chat_to_proto(prompt), field)


def _chat_to_proto(chat: Chat) -> pb.Prompt:
    messages = [pb.ChatMessage(role=message.role, content=message.content) for message in chat]
    return pb.Prompt(chat=pb.ChatMessages(messages=messages))


def prompt_from_proto(message: pb.Prompt, field: str = "prompt") -> Prompt:
    """A prompt; FieldError where no form is set or it holds no message or token."""
    form = message.WhichOneof("content")
    if form == "token_ids":
        ids = tuple(message.token_ids.ids)
        require(bool(ids), at(field, "token_ids"), "no ids", "at least one token id")
        return TokenIds(ids)
    return said_prompt_from_proto(message, field)


def said_prompt_from_proto(message: pb.Prompt, field: str = "prompt") -> str | Chat:
    """A prompt as text or chat; FieldError for token ids, no form, or a chat without messages."""
    form = message.WhichOneof("content")
    if form == "text":
        return message.text
    if form == "chat":
        chat = tuple(ChatMessage(entry.role, entry.content) for entry in message.chat.messages)
        require(bool(chat), at(field, "chat.messages"), "none", "at least one message")
        for index, entry in enumerate(chat):
            require_text(entry.role, at(field, f"chat.messages[{index}].role"))
        return chat
    raise FieldError(field, form or "nothing", "text or chat messages")


def task_to_proto(task: Task, field: str = "task") -> pb.Task:
    """A task, its item as JSON."""
    return pb.Task(id=task.id, item_json=encode_item(task.item, at(field, "item")))


def task_from_proto(message: pb.Task, field: str = "task") -> Task:
    """A task; FieldError where it has no id or its item is no JSON object."""
    require_id(message.id, at(field, "id"))
    return Task(message.id, decode_item(message.item_json, at(field, "item_json")))


def tasks_from_proto(messages: Iterable[pb.Task], field: str = "tasks") -> dict[str, Task]:
    """Tasks by id; FieldError for an id that comes twice."""
    tasks = [task_from_proto(entry, f"{field}[{index}]") for index, entry in enumerate(messages)]
    require_distinct((task.id for task in tasks), field)
    return {task.id: task for task in tasks}


def _action_to_proto(action: AgentAction, field: str) -> pb.AgentAction:
    prompt = prompt_to_proto(action.prompt, at(field, "prompt"))
    return encodable(
        lambda: pb.AgentAction(prompt=prompt, completion=action.completion),
        at(field, "completion"),
    )


def _actions_from_proto(messages: Iterable[pb.AgentAction], field: str) -> tuple[AgentAction, ...]:
    return tuple(
        AgentAction(
            said_prompt_from_proto(entry.prompt, f"{field}[{index}].prompt"), entry.completion
        )
        for index, entry in enumerate(messages)
    )


def joint_action_to_proto(joint_action: JointAction, field: str = "joint_action") -> pb.JointAction:
    """A joint action with its history."""
    return pb.JointAction(
        id=joint_action.id,
        task_id=joint_action.task_id,
        turn=joint_action.turn,
        phase=_PHASE_NUMBERS[joint_action.phase],
        attempt=joint_action.attempt,
        actions=[
            _action_to_proto(action, f"{field}.actions[{agent}]")
            for agent, action in enumerate(joint_action.actions)
        ],
        history=[
            pb.PastTurn(
                actions=[
                    _action_to_proto(action, f"{field}.history[{past}].actions[{agent}]")
                    for agent, action in enumerate(actions)
                ]
            )
            for past, actions in enumerate(joint_action.history)
        ],
    )


def joint_action_from_proto(
    message: pb.JointAction,
    field: str = "joint_action",
    *,
    tasks: Mapping[str, Task] | None = None,
) -> JointAction:
    """A joint action.

    Raises:
        FieldError: It has no id or actions, names a task that is not in `tasks`, or its history
            does not have turn - 1 turns of as many actions.
    """
    require_id(message.id, at(field, "id"))
    if tasks is not None:
        require(
            message.task_id in tasks,
            at(field, "task_id"),
            repr(message.task_id),
            "the id of a task of the same request",
        )
    turn = require_at_least(message.turn, 1, at(field, "turn"))
    attempt = require_at_least(message.attempt, 1, at(field, "attempt"))
    actions = _actions_from_proto(message.actions, at(field, "actions"))
    require(bool(actions), at(field, "actions"), "none", "one action per agent")
    past = message.history
    require(
        len(past) == turn - 1,
        at(field, "history"),
        f"{len(past)} turns",
        f"{turn - 1}, one for each turn before turn {turn}",
    )
    history = tuple(
        _actions_from_proto(entry.actions, at(field, f"history[{index}].actions"))
        for index, entry in enumerate(past)
    )
    for index, entry in enumerate(history):
        require(
            len(entry) == len(actions),
            at(field, f"history[{index}].actions"),
            f"{len(entry)} actions",
            f"{len(actions)}, as in this turn",
        )
    return JointAction(
        id=message.id,
        task_id=message.task_id,
        turn=turn,
        phase=enum_from_proto(message.phase, PHASES, at(field, "phase")),
        attempt=attempt,
        actions=actions,
        history=history,
    )


def score_to_proto(score: Score, field: str = "score") -> pb.Score:
    """A score; FieldError where it has both a value and a reason, or neither."""
    require(
        (score.value is None) != (score.missing_reason is None),
        field,
        f"value {score.value} and missing_reason {score.missing_reason!r}",
        "exactly one of them",
    )
    if score.missing_reason is not None:
        require_text(score.missing_reason, at(field, "missing_reason"))
    return encodable(
        lambda: pb.Score(
            joint_action_id=score.joint_action_id,
            value=score.value,
            missing_reason=score.missing_reason,
            components=score.components,
            info_json=b"" if score.info is None else encode_item(score.info, at(field, "info")),
        ),
        field,
    )


def score_from_proto(message: pb.Score, field: str = "score") -> Score:
    """A score; FieldError where it has no id, no outcome, an empty reason or a bad info."""
    outcome = message.WhichOneof("outcome")
    require(outcome is not None, field, "neither value nor missing_reason", "one of them")
    if outcome == "missing_reason":
        require_text(message.missing_reason, at(field, "missing_reason"))
    return Score(
        joint_action_id=require_id(message.joint_action_id, at(field, "joint_action_id")),
        value=message.value if outcome == "value" else None,
        missing_reason=message.missing_reason if outcome == "missing_reason" else None,
        components=dict(message.components),
        info=(
            decode_item(message.info_json, at(field, "info_json")) if message.info_json else None
        ),
    )
