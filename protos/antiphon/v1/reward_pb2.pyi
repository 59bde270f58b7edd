from antiphon.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScoreRequest(_message.Message):
    __slots__ = ("run_id", "tasks", "joint_actions")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    JOINT_ACTIONS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    tasks: _containers.RepeatedCompositeFieldContainer[_common_pb2.Task]
    joint_actions: _containers.RepeatedCompositeFieldContainer[_common_pb2.JointAction]
    def __init__(self, run_id: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[_common_pb2.Task, _Mapping]]] = ..., joint_actions: _Optional[_Iterable[_Union[_common_pb2.JointAction, _Mapping]]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("scores",)
    SCORES_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedCompositeFieldContainer[_common_pb2.Score]
    def __init__(self, scores: _Optional[_Iterable[_Union[_common_pb2.Score, _Mapping]]] = ...) -> None: ...

class GetRewardInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRewardInfoResponse(_message.Message):
    __slots__ = ("name", "version", "value_min", "value_max", "max_batch_size", "max_concurrent_calls")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VALUE_MIN_FIELD_NUMBER: _ClassVar[int]
    VALUE_MAX_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENT_CALLS_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    value_min: float
    value_max: float
    max_batch_size: int
    max_concurrent_calls: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., value_min: _Optional[float] = ..., value_max: _Optional[float] = ..., max_batch_size: _Optional[int] = ..., max_concurrent_calls: _Optional[int] = ...) -> None: ...
