import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATE_UNSPECIFIED: _ClassVar[RunState]
    RUN_STATE_STARTING: _ClassVar[RunState]
    RUN_STATE_TRAINING: _ClassVar[RunState]
    RUN_STATE_PAUSED: _ClassVar[RunState]
    RUN_STATE_STOPPING: _ClassVar[RunState]
    RUN_STATE_FINISHED: _ClassVar[RunState]
    RUN_STATE_STOPPED: _ClassVar[RunState]
    RUN_STATE_FAILED: _ClassVar[RunState]
RUN_STATE_UNSPECIFIED: RunState
RUN_STATE_STARTING: RunState
RUN_STATE_TRAINING: RunState
RUN_STATE_PAUSED: RunState
RUN_STATE_STOPPING: RunState
RUN_STATE_FINISHED: RunState
RUN_STATE_STOPPED: RunState
RUN_STATE_FAILED: RunState

class AgentStatus(_message.Message):
    __slots__ = ("agent", "model", "weights_version", "optimizer_steps")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_STEPS_FIELD_NUMBER: _ClassVar[int]
    agent: int
    model: str
    weights_version: int
    optimizer_steps: int
    def __init__(self, agent: _Optional[int] = ..., model: _Optional[str] = ..., weights_version: _Optional[int] = ..., optimizer_steps: _Optional[int] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("run_id", "incarnation", "state", "run_directory", "epoch", "num_epochs", "prompts_done", "prompts_total", "joint_actions", "start_time", "seconds_left", "agents", "error")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RUN_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_DONE_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    JOINT_ACTIONS_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    incarnation: int
    state: RunState
    run_directory: str
    epoch: int
    num_epochs: int
    prompts_done: int
    prompts_total: int
    joint_actions: int
    start_time: _timestamp_pb2.Timestamp
    seconds_left: float
    agents: _containers.RepeatedCompositeFieldContainer[AgentStatus]
    error: str
    def __init__(self, run_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., state: _Optional[_Union[RunState, str]] = ..., run_directory: _Optional[str] = ..., epoch: _Optional[int] = ..., num_epochs: _Optional[int] = ..., prompts_done: _Optional[int] = ..., prompts_total: _Optional[int] = ..., joint_actions: _Optional[int] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., seconds_left: _Optional[float] = ..., agents: _Optional[_Iterable[_Union[AgentStatus, _Mapping]]] = ..., error: _Optional[str] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class WatchRunRequest(_message.Message):
    __slots__ = ("after_sequence",)
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    after_sequence: int
    def __init__(self, after_sequence: _Optional[int] = ...) -> None: ...

class MetricsLogged(_message.Message):
    __slots__ = ("joint_actions", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOINT_ACTIONS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    joint_actions: int
    values: _containers.ScalarMap[str, float]
    def __init__(self, joint_actions: _Optional[int] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Note(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class RunEvent(_message.Message):
    __slots__ = ("sequence", "time", "run", "metrics", "note")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    time: _timestamp_pb2.Timestamp
    run: Run
    metrics: MetricsLogged
    note: Note
    def __init__(self, sequence: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., run: _Optional[_Union[Run, _Mapping]] = ..., metrics: _Optional[_Union[MetricsLogged, _Mapping]] = ..., note: _Optional[_Union[Note, _Mapping]] = ...) -> None: ...

class WatchRunResponse(_message.Message):
    __slots__ = ("event", "missed")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    event: RunEvent
    missed: int
    def __init__(self, event: _Optional[_Union[RunEvent, _Mapping]] = ..., missed: _Optional[int] = ...) -> None: ...

class PauseRunRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class ResumeRunRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class StopRunRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StopRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class SaveCheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SaveCheckpointResponse(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class EvaluateRequest(_message.Message):
    __slots__ = ("num_samples",)
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    num_samples: int
    def __init__(self, num_samples: _Optional[int] = ...) -> None: ...

class EvaluateResponse(_message.Message):
    __slots__ = ("task_id", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    values: _containers.ScalarMap[str, float]
    def __init__(self, task_id: _Optional[str] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...
