from antiphon.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScoredJointAction(_message.Message):
    __slots__ = ("joint_action", "score")
    JOINT_ACTION_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    joint_action: _common_pb2.JointAction
    score: _common_pb2.Score
    def __init__(self, joint_action: _Optional[_Union[_common_pb2.JointAction, _Mapping]] = ..., score: _Optional[_Union[_common_pb2.Score, _Mapping]] = ...) -> None: ...

class TransitionRequest(_message.Message):
    __slots__ = ("run_id", "tasks", "joint_actions")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    JOINT_ACTIONS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    tasks: _containers.RepeatedCompositeFieldContainer[_common_pb2.Task]
    joint_actions: _containers.RepeatedCompositeFieldContainer[ScoredJointAction]
    def __init__(self, run_id: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[_common_pb2.Task, _Mapping]]] = ..., joint_actions: _Optional[_Iterable[_Union[ScoredJointAction, _Mapping]]] = ...) -> None: ...

class NextPrompts(_message.Message):
    __slots__ = ("prompts",)
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    prompts: _containers.RepeatedCompositeFieldContainer[_common_pb2.Prompt]
    def __init__(self, prompts: _Optional[_Iterable[_Union[_common_pb2.Prompt, _Mapping]]] = ...) -> None: ...

class BranchEnd(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class TransitionResult(_message.Message):
    __slots__ = ("joint_action_id", "next_prompts", "branch_end")
    JOINT_ACTION_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    BRANCH_END_FIELD_NUMBER: _ClassVar[int]
    joint_action_id: str
    next_prompts: NextPrompts
    branch_end: BranchEnd
    def __init__(self, joint_action_id: _Optional[str] = ..., next_prompts: _Optional[_Union[NextPrompts, _Mapping]] = ..., branch_end: _Optional[_Union[BranchEnd, _Mapping]] = ...) -> None: ...

class TransitionResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[TransitionResult]
    def __init__(self, results: _Optional[_Iterable[_Union[TransitionResult, _Mapping]]] = ...) -> None: ...
