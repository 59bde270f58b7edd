"""What callers and services speak of, free of protobuf.

`antiphon.clients.wire` turns these into messages of `antiphon.v1` and back; field meanings,
shapes and units are those of the protos. Agents count from 0, turns and attempts from 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FieldError(ValueError):
    """A field of a request, config or answer holds what it must not.

    Args:
        field: Path of the field, for example ``prompts[2].seeds``.
        got: What came, short enough to read.
        wanted: What is allowed, and what to do where that is not plain.

    """

    def __init__(self, field: str, got: object, wanted: str) -> None:
        super().__init__(f"{field}: got {got}, wanted {wanted}")
        self.field = field
        self.got = got
        self.wanted = wanted


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A prompt given as token ids."""

    ids: tuple[int, ...]


Chat = tuple[ChatMessage, ...]
Prompt = str | Chat | TokenIds


class Phase(StrEnum):
    """What a joint action is generated for."""

    TRAIN = "train"
    EVAL = "eval"


@dataclass(frozen=True, slots=True)
class Task:
    """One dataset row. `item` holds JSON values only."""

    id: str
    item: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AgentAction:
    """What one agent was asked (text or chat) and answered in one turn."""

    prompt: str | Chat
    completion: str


@dataclass(frozen=True, slots=True)
class JointAction:
    """The answers of all agents to one task in one turn.

    `history` holds earlier turns, oldest first, each with one action per agent.
    """

    id: str
    task_id: str
    turn: int
    phase: Phase
    attempt: int
    actions: tuple[AgentAction, ...]
    history: tuple[tuple[AgentAction, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """The reward of one joint action, or the reason why there is none."""

    joint_action_id: str
    value: float | None
    missing_reason: str | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ScoredJointAction:
    """A joint action with its score."""

    joint_action: JointAction
    score: Score


@dataclass(frozen=True, slots=True)
class NextPrompts:
    """The prompts of the next turn, one per agent, none of them empty."""

    prompts: tuple[str | Chat, ...]


@dataclass(frozen=True, slots=True)
class BranchEnd:
    """The branch ends after this turn."""

    reason: str


@dataclass(frozen=True, slots=True)
class TransitionResult:
    """What follows one joint action."""

    joint_action_id: str
    outcome: NextPrompts | BranchEnd


@dataclass(frozen=True, slots=True)
class RewardInfo:
    """What a reward service is. 0 stands for no limit."""

    name: str
    version: str = ""
    value_min: float | None = None
    value_max: float | None = None
    max_batch_size: int = 0
    max_concurrent_calls: int = 0


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How completions are sampled: logits / temperature, then top_k, then top_p.

    None turns a filter off. Temperature 0 is greedy decoding.
    """

    temperature: float
    top_k: int | None
    top_p: float | None
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class PromptSamples:
    """A prompt and one 64-bit seed per sample wanted of it."""

    prompt: Prompt
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Prompts to complete as one batch."""

    run_id: str
    incarnation: int
    agent: int
    min_weights_version: int
    prompts: tuple[PromptSamples, ...]
    sampling: SamplingParameters
    include_full_logprobs: bool = False


class FinishReason(StrEnum):
    """Why a completion ended."""

    END_TOKEN = "end_token"  # noqa: S105
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class WeightsSpan:
    """Tokens from index `start` on were sampled under `weights_version`."""

    start: int
    weights_version: int


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion of C tokens (the end token included) to a prompt of P tokens.

    `logprobs`, `kept_sizes` have shape [C]; `full_logprobs` and `full_logprobs_temperature_1` are
    [C] where they were asked for, else empty. Log-probabilities are natural.
    """

    prompt_index: int
    sample_index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    kept_sizes: tuple[int, ...]
    finish_reason: FinishReason
    prompt_token_ids: tuple[int, ...]
    weights_spans: tuple[WeightsSpan, ...]
    instance_id: str
    boot_id: str
    full_logprobs: tuple[float, ...] = ()
    full_logprobs_temperature_1: tuple[float, ...] = ()


class PushKind(StrEnum):
    """What a push holds."""

    FULL = "full"
    DELTA = "delta"
    ADAPTER = "adapter"


class TensorDtype(StrEnum):
    """Number format of a tensor on the wire."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return 2 if self is TensorDtype.BFLOAT16 else 4


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor as it is once a push is applied; `checksum` is XXH3-128 of its bytes."""

    name: str
    dtype: TensorDtype
    shape: tuple[int, ...]
    checksum: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor on the wire."""
        size = self.dtype.size
        for n in self.shape:
            size *= n
        return size


@dataclass(frozen=True, slots=True)
class PushHeader:
    """Opens a push. `tensors` are sorted by name; `digest` is `weights_digest(tensors)`.

    `delta_sizes` are for DELTA the bytes of each tensor's encoded change, else empty.
    """

    run_id: str
    incarnation: int
    agent: int
    version: int
    digest: bytes
    kind: PushKind
    tensors: tuple[TensorSpec, ...]
    base_version: int = 0
    base_digest: bytes = b""
    delta_sizes: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many bytes the chunks bring of each tensor."""
        if self.kind is PushKind.DELTA:
            return self.delta_sizes
        return tuple(spec.nbytes for spec in self.tensors)


@dataclass(frozen=True, slots=True)
class WeightsChunk:
    """Bytes of one tensor from `offset` on; `checksum` is XXH3-64 of `data`."""

    tensor_index: int
    offset: int
    data: bytes | memoryview
    checksum: int


@dataclass(frozen=True, slots=True)
class StoredChunks:
    """Stands for all chunks of a push, which lie in a store; XXH3-64 of each, in order."""

    chunk_bytes: int
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """The weights that a service samples from; version 0 are those that it started with."""

    run_id: str = ""
    incarnation: int = 0
    version: int = 0
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class PushResult:
    """A push is applied. `pause_seconds` is how long the engine could not generate."""

    weights_version: int
    digest: bytes
    instance_id: str
    boot_id: str
    pause_seconds: float


class PushState(StrEnum):
    """How far a push has come."""

    UNKNOWN = "unknown"
    STAGED = "staged"
    APPLYING = "applying"
    APPLIED = "applied"


@dataclass(frozen=True, slots=True)
class PushStatus:
    """What of a push has arrived (bytes without gaps, by tensor index) and what is loaded."""

    state: PushState
    received_bytes: tuple[int, ...]
    loaded: LoadedWeights


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What an engine can do.

    It takes `batch_rows` completions at once, 0 where it does not say, and deltas in the number
    formats `delta_dtypes`, empty where it does not say.
    """

    push_kinds: frozenset[PushKind]
    token_ids: bool
    logprobs: bool
    full_logprobs: bool
    seeds: bool
    batch_rows: int = 0
    delta_dtypes: frozenset[TensorDtype] = frozenset()


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a generation service runs; `max_prompt_tokens` 0 where the context alone is a limit."""

    model: str
    engine: str
    vocabulary_size: int
    tokenizer_fingerprint: bytes
    context_length: int
    end_token_ids: tuple[int, ...]
    loaded: LoadedWeights
    bound_run_id: str
    bound_incarnation: int
    instance_id: str
    boot_id: str
    capabilities: EngineCapabilities
    max_prompt_tokens: int = 0
    reads_store: bool = False

    @property
    def longest_prompt(self) -> int:
        """Most tokens of a prompt."""
        return self.max_prompt_tokens or self.context_length


class RunState(StrEnum):
    """What a run is doing."""

    STARTING = "starting"
    TRAINING = "training"
    PAUSED = "paused"
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self in (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """Where an agent's weights stand."""

    agent: int
    model: str
    weights_version: int
    optimizer_steps: int


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it stands. `start_time` in seconds since 1970; `prompts_total` 0 where unknown."""

    run_id: str
    incarnation: int
    state: RunState
    run_directory: str
    epoch: int
    num_epochs: int
    prompts_done: int
    prompts_total: int
    joint_actions: int
    start_time: float
    seconds_left: float | None
    agents: tuple[AgentStatus, ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class MetricsLogged:
    """Figures of one moment, by name."""

    joint_actions: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Note:
    """A line for people."""

    text: str


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Figures of one evaluated task by name; `task_id` is empty where they are those of all."""

    task_id: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One thing that happened.

    `time` in seconds since 1970; `missed` events before it are no longer kept.
    """

    sequence: int
    time: float
    event: Run | MetricsLogged | Note
    missed: int = 0
