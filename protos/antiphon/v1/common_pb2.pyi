from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_WEIGHTS_MISSING: _ClassVar[ErrorReason]
    ERROR_REASON_WEIGHTS_FOREIGN: _ClassVar[ErrorReason]
    ERROR_REASON_INCARNATION_SUPERSEDED: _ClassVar[ErrorReason]
    ERROR_REASON_RUN_LEASE_HELD: _ClassVar[ErrorReason]
    ERROR_REASON_PUSH_BASE_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_PUSH_VERSION_CONFLICT: _ClassVar[ErrorReason]
    ERROR_REASON_PUSH_CHECKSUM_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_FEATURE_UNAVAILABLE: _ClassVar[ErrorReason]
    ERROR_REASON_USER_FUNCTION_FAILED: _ClassVar[ErrorReason]
    ERROR_REASON_PUSH_REPLACED: _ClassVar[ErrorReason]
    ERROR_REASON_PUSH_NOT_STORED: _ClassVar[ErrorReason]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_TRAIN: _ClassVar[Phase]
    PHASE_EVAL: _ClassVar[Phase]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_WEIGHTS_MISSING: ErrorReason
ERROR_REASON_WEIGHTS_FOREIGN: ErrorReason
ERROR_REASON_INCARNATION_SUPERSEDED: ErrorReason
ERROR_REASON_RUN_LEASE_HELD: ErrorReason
ERROR_REASON_PUSH_BASE_MISMATCH: ErrorReason
ERROR_REASON_PUSH_VERSION_CONFLICT: ErrorReason
ERROR_REASON_PUSH_CHECKSUM_MISMATCH: ErrorReason
ERROR_REASON_FEATURE_UNAVAILABLE: ErrorReason
ERROR_REASON_USER_FUNCTION_FAILED: ErrorReason
ERROR_REASON_PUSH_REPLACED: ErrorReason
ERROR_REASON_PUSH_NOT_STORED: ErrorReason
PHASE_UNSPECIFIED: Phase
PHASE_TRAIN: Phase
PHASE_EVAL: Phase

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class ChatMessages(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ("text", "chat", "token_ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    chat: ChatMessages
    token_ids: TokenIds
    def __init__(self, text: _Optional[str] = ..., chat: _Optional[_Union[ChatMessages, _Mapping]] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("id", "item_json")
    ID_FIELD_NUMBER: _ClassVar[int]
    ITEM_JSON_FIELD_NUMBER: _ClassVar[int]
    id: str
    item_json: bytes
    def __init__(self, id: _Optional[str] = ..., item_json: _Optional[bytes] = ...) -> None: ...

class AgentAction(_message.Message):
    __slots__ = ("prompt", "completion")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_FIELD_NUMBER: _ClassVar[int]
    prompt: Prompt
    completion: str
    def __init__(self, prompt: _Optional[_Union[Prompt, _Mapping]] = ..., completion: _Optional[str] = ...) -> None: ...

class PastTurn(_message.Message):
    __slots__ = ("actions",)
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    actions: _containers.RepeatedCompositeFieldContainer[AgentAction]
    def __init__(self, actions: _Optional[_Iterable[_Union[AgentAction, _Mapping]]] = ...) -> None: ...

class JointAction(_message.Message):
    __slots__ = ("id", "task_id", "turn", "phase", "attempt", "actions", "history")
    ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    id: str
    task_id: str
    turn: int
    phase: Phase
    attempt: int
    actions: _containers.RepeatedCompositeFieldContainer[AgentAction]
    history: _containers.RepeatedCompositeFieldContainer[PastTurn]
    def __init__(self, id: _Optional[str] = ..., task_id: _Optional[str] = ..., turn: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., attempt: _Optional[int] = ..., actions: _Optional[_Iterable[_Union[AgentAction, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[PastTurn, _Mapping]]] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("joint_action_id", "value", "missing_reason", "components", "info_json")
    class ComponentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOINT_ACTION_ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    MISSING_REASON_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    INFO_JSON_FIELD_NUMBER: _ClassVar[int]
    joint_action_id: str
    value: float
    missing_reason: str
    components: _containers.ScalarMap[str, float]
    info_json: bytes
    def __init__(self, joint_action_id: _Optional[str] = ..., value: _Optional[float] = ..., missing_reason: _Optional[str] = ..., components: _Optional[_Mapping[str, float]] = ..., info_json: _Optional[bytes] = ...) -> None: ...
