from antiphon.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_END_TOKEN: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]

class PushKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUSH_KIND_UNSPECIFIED: _ClassVar[PushKind]
    PUSH_KIND_FULL: _ClassVar[PushKind]
    PUSH_KIND_DELTA: _ClassVar[PushKind]
    PUSH_KIND_ADAPTER: _ClassVar[PushKind]

class TensorDtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TENSOR_DTYPE_UNSPECIFIED: _ClassVar[TensorDtype]
    TENSOR_DTYPE_BFLOAT16: _ClassVar[TensorDtype]
    TENSOR_DTYPE_FLOAT32: _ClassVar[TensorDtype]

class PushState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUSH_STATE_UNSPECIFIED: _ClassVar[PushState]
    PUSH_STATE_UNKNOWN: _ClassVar[PushState]
    PUSH_STATE_STAGED: _ClassVar[PushState]
    PUSH_STATE_APPLYING: _ClassVar[PushState]
    PUSH_STATE_APPLIED: _ClassVar[PushState]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_END_TOKEN: FinishReason
FINISH_REASON_LENGTH: FinishReason
PUSH_KIND_UNSPECIFIED: PushKind
PUSH_KIND_FULL: PushKind
PUSH_KIND_DELTA: PushKind
PUSH_KIND_ADAPTER: PushKind
TENSOR_DTYPE_UNSPECIFIED: TensorDtype
TENSOR_DTYPE_BFLOAT16: TensorDtype
TENSOR_DTYPE_FLOAT32: TensorDtype
PUSH_STATE_UNSPECIFIED: PushState
PUSH_STATE_UNKNOWN: PushState
PUSH_STATE_STAGED: PushState
PUSH_STATE_APPLYING: PushState
PUSH_STATE_APPLIED: PushState

class SamplingParameters(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "max_new_tokens")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    max_new_tokens: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., max_new_tokens: _Optional[int] = ...) -> None: ...

class PromptSamples(_message.Message):
    __slots__ = ("prompt", "seeds")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    prompt: _common_pb2.Prompt
    seeds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, prompt: _Optional[_Union[_common_pb2.Prompt, _Mapping]] = ..., seeds: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("run_id", "incarnation", "agent", "min_weights_version", "prompts", "sampling", "include_full_logprobs")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    MIN_WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_FULL_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    incarnation: int
    agent: int
    min_weights_version: int
    prompts: _containers.RepeatedCompositeFieldContainer[PromptSamples]
    sampling: SamplingParameters
    include_full_logprobs: bool
    def __init__(self, run_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., agent: _Optional[int] = ..., min_weights_version: _Optional[int] = ..., prompts: _Optional[_Iterable[_Union[PromptSamples, _Mapping]]] = ..., sampling: _Optional[_Union[SamplingParameters, _Mapping]] = ..., include_full_logprobs: _Optional[bool] = ...) -> None: ...

class WeightsSpan(_message.Message):
    __slots__ = ("start", "weights_version")
    START_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    start: int
    weights_version: int
    def __init__(self, start: _Optional[int] = ..., weights_version: _Optional[int] = ...) -> None: ...

class Completion(_message.Message):
    __slots__ = ("prompt_index", "sample_index", "text", "token_ids", "logprobs", "kept_sizes", "full_logprobs", "full_logprobs_temperature_1", "finish_reason", "prompt_token_ids", "weights_spans", "instance_id", "boot_id")
    PROMPT_INDEX_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    KEPT_SIZES_FIELD_NUMBER: _ClassVar[int]
    FULL_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FULL_LOGPROBS_TEMPERATURE_1_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SPANS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    prompt_index: int
    sample_index: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    kept_sizes: _containers.RepeatedScalarFieldContainer[int]
    full_logprobs: _containers.RepeatedScalarFieldContainer[float]
    full_logprobs_temperature_1: _containers.RepeatedScalarFieldContainer[float]
    finish_reason: FinishReason
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    weights_spans: _containers.RepeatedCompositeFieldContainer[WeightsSpan]
    instance_id: str
    boot_id: str
    def __init__(self, prompt_index: _Optional[int] = ..., sample_index: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., kept_sizes: _Optional[_Iterable[int]] = ..., full_logprobs: _Optional[_Iterable[float]] = ..., full_logprobs_temperature_1: _Optional[_Iterable[float]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., weights_spans: _Optional[_Iterable[_Union[WeightsSpan, _Mapping]]] = ..., instance_id: _Optional[str] = ..., boot_id: _Optional[str] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("completions",)
    COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    completions: _containers.RepeatedCompositeFieldContainer[Completion]
    def __init__(self, completions: _Optional[_Iterable[_Union[Completion, _Mapping]]] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("name", "dtype", "shape", "checksum")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: TensorDtype
    shape: _containers.RepeatedScalarFieldContainer[int]
    checksum: bytes
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[TensorDtype, str]] = ..., shape: _Optional[_Iterable[int]] = ..., checksum: _Optional[bytes] = ...) -> None: ...

class PushHeader(_message.Message):
    __slots__ = ("run_id", "incarnation", "agent", "base_version", "base_digest", "version", "digest", "kind", "tensors", "delta_sizes")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    DELTA_SIZES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    incarnation: int
    agent: int
    base_version: int
    base_digest: bytes
    version: int
    digest: bytes
    kind: PushKind
    tensors: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    delta_sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, run_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., agent: _Optional[int] = ..., base_version: _Optional[int] = ..., base_digest: _Optional[bytes] = ..., version: _Optional[int] = ..., digest: _Optional[bytes] = ..., kind: _Optional[_Union[PushKind, str]] = ..., tensors: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., delta_sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class WeightsChunk(_message.Message):
    __slots__ = ("tensor_index", "offset", "data", "checksum")
    TENSOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    tensor_index: int
    offset: int
    data: bytes
    checksum: int
    def __init__(self, tensor_index: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., checksum: _Optional[int] = ...) -> None: ...

class StoredChunks(_message.Message):
    __slots__ = ("chunk_bytes", "checksums")
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    chunk_bytes: int
    checksums: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, chunk_bytes: _Optional[int] = ..., checksums: _Optional[_Iterable[int]] = ...) -> None: ...

class PushWeightsRequest(_message.Message):
    __slots__ = ("header", "chunk", "stored")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    header: PushHeader
    chunk: WeightsChunk
    stored: StoredChunks
    def __init__(self, header: _Optional[_Union[PushHeader, _Mapping]] = ..., chunk: _Optional[_Union[WeightsChunk, _Mapping]] = ..., stored: _Optional[_Union[StoredChunks, _Mapping]] = ...) -> None: ...

class PushWeightsResponse(_message.Message):
    __slots__ = ("weights_version", "digest", "instance_id", "boot_id", "pause_seconds")
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PAUSE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    weights_version: int
    digest: bytes
    instance_id: str
    boot_id: str
    pause_seconds: float
    def __init__(self, weights_version: _Optional[int] = ..., digest: _Optional[bytes] = ..., instance_id: _Optional[str] = ..., boot_id: _Optional[str] = ..., pause_seconds: _Optional[float] = ...) -> None: ...

class GetPushStatusRequest(_message.Message):
    __slots__ = ("run_id", "incarnation", "version", "digest", "kind")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    incarnation: int
    version: int
    digest: bytes
    kind: PushKind
    def __init__(self, run_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., version: _Optional[int] = ..., digest: _Optional[bytes] = ..., kind: _Optional[_Union[PushKind, str]] = ...) -> None: ...

class GetPushStatusResponse(_message.Message):
    __slots__ = ("state", "received_bytes", "loaded")
    STATE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    state: PushState
    received_bytes: _containers.RepeatedScalarFieldContainer[int]
    loaded: LoadedWeights
    def __init__(self, state: _Optional[_Union[PushState, str]] = ..., received_bytes: _Optional[_Iterable[int]] = ..., loaded: _Optional[_Union[LoadedWeights, _Mapping]] = ...) -> None: ...

class LoadedWeights(_message.Message):
    __slots__ = ("run_id", "incarnation", "version", "digest")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    incarnation: int
    version: int
    digest: bytes
    def __init__(self, run_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., version: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EngineCapabilities(_message.Message):
    __slots__ = ("push_kinds", "token_ids", "logprobs", "full_logprobs", "seeds", "batch_rows", "delta_dtypes")
    PUSH_KINDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FULL_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    DELTA_DTYPES_FIELD_NUMBER: _ClassVar[int]
    push_kinds: _containers.RepeatedScalarFieldContainer[PushKind]
    token_ids: bool
    logprobs: bool
    full_logprobs: bool
    seeds: bool
    batch_rows: int
    delta_dtypes: _containers.RepeatedScalarFieldContainer[TensorDtype]
    def __init__(self, push_kinds: _Optional[_Iterable[_Union[PushKind, str]]] = ..., token_ids: _Optional[bool] = ..., logprobs: _Optional[bool] = ..., full_logprobs: _Optional[bool] = ..., seeds: _Optional[bool] = ..., batch_rows: _Optional[int] = ..., delta_dtypes: _Optional[_Iterable[_Union[TensorDtype, str]]] = ...) -> None: ...

class GetModelInfoResponse(_message.Message):
    __slots__ = ("model", "engine", "vocabulary_size", "tokenizer_fingerprint", "context_length", "end_token_ids", "loaded", "bound_run_id", "bound_incarnation", "instance_id", "boot_id", "capabilities", "max_prompt_tokens", "reads_store")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    BOUND_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    BOUND_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    READS_STORE_FIELD_NUMBER: _ClassVar[int]
    model: str
    engine: str
    vocabulary_size: int
    tokenizer_fingerprint: bytes
    context_length: int
    end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    loaded: LoadedWeights
    bound_run_id: str
    bound_incarnation: int
    instance_id: str
    boot_id: str
    capabilities: EngineCapabilities
    max_prompt_tokens: int
    reads_store: bool
    def __init__(self, model: _Optional[str] = ..., engine: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., tokenizer_fingerprint: _Optional[bytes] = ..., context_length: _Optional[int] = ..., end_token_ids: _Optional[_Iterable[int]] = ..., loaded: _Optional[_Union[LoadedWeights, _Mapping]] = ..., bound_run_id: _Optional[str] = ..., bound_incarnation: _Optional[int] = ..., instance_id: _Optional[str] = ..., boot_id: _Optional[str] = ..., capabilities: _Optional[_Union[EngineCapabilities, _Mapping]] = ..., max_prompt_tokens: _Optional[int] = ..., reads_store: _Optional[bool] = ...) -> None: ...
