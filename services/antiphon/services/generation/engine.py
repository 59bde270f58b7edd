"""What the generation service asks of an engine; those of other programs are in `engines`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from antiphon.clients.types import (
    Completion,
    EngineCapabilities,
    LoadedWeights,
    Prompt,
    SamplingParameters,
    TensorSpec,
)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine runs; the fields are those of `ModelInfo`."""

    model: str
    engine: str
    vocabulary_size: int
    tokenizer_fingerprint: bytes
    context_length: int
    end_token_ids: tuple[int, ...]
    capabilities: EngineCapabilities
    max_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt's token ids, at least one, and a seed per sample wanted of it.

    `prompt` is what the ids were made of, for engines that take text only.
    """

    token_ids: tuple[int, ...]
    seeds: tuple[int, ...]
    prompt: Prompt = ""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """Prompts to complete together.

    `admit` is called in the engine's thread with the weights about to sample, when the request's
    turn has come and after a swap in its middle; it raises where they must not sample it.
    `deadline`, on the clock of `time.monotonic`, is when nobody waits any more; None for never.
    """

    prompts: tuple[EncodedPrompt, ...]
    sampling: SamplingParameters
    include_full_logprobs: bool
    admit: Callable[[LoadedWeights], None]
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class PushedTensor:
    """A verified tensor of a push: what it is and its bytes, row-major."""

    spec: TensorSpec
    data: memoryview


@dataclass(frozen=True, slots=True)
class ChangedTensor:
    """What a delta changes in a tensor that is loaded: its elements at `positions` become `values`.

    Positions are indices into the flattened tensor (int64, [changed]), values the new elements in
    the wire's number format. The result is as `spec` says, verified.
    """

    spec: TensorSpec
    positions: Tensor
    values: Tensor


class Engine(Protocol):
    """Samples in a thread of its own, one request or swap after another in order of arrival."""

    @property
    def info(self) -> EngineInfo:
        """What the engine runs."""
        ...

    @property
    def loaded(self) -> LoadedWeights:
        """The weights that sample now. It moves once all tensors of a push are applied."""
        ...

    @property
    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Name and shape of each of the model's own tensors, which every full push holds."""
        ...

    @property
    def base(self) -> tuple[TensorSpec, ...]:
        """The model's own tensors as they are loaded, without an adapter's; empty for none."""
        ...

    def check_adapter(self, specs: Sequence[TensorSpec], field: str) -> None:
        """Checks that an adapter fits the model.

        Raises:
            FieldError: Naming what does not fit.
        """
        ...

    @property
    def seconds_since_step(self) -> float:
        """Age of the last finished step while there is work; 0 while idle."""
        ...

    def encode(self, prompt: Prompt, field: str) -> tuple[int, ...]:
        """The prompt's token ids. May take long and be called from any thread.

        Raises:
            FieldError: Naming `field`, where the prompt cannot be completed at all.
        """
        ...

    def generate(self, request: EngineRequest) -> AsyncGenerator[Completion]:
        """Yields completions as they end, without `instance_id` and `boot_id`.

        Closing the generator or cancelling the task that reads it frees the request's rows.
        """
        ...

    async def apply(self, tensors: Sequence[PushedTensor], loaded: LoadedWeights) -> float:
        """Swaps weights and returns the seconds in which nothing could be sampled.

        The tensors are all of `tensor_shapes`, an adapter's, or both. An adapter replaces the one
        before it, and the model's own tensors without one leave none. Cancelling the wait does not
        undo the swap.
        """
        ...

    def start(self) -> None:
        """Starts the engine's thread."""
        ...

    async def stop(self) -> None:
        """Drops all work and ends the engine's thread."""
        ...


@runtime_checkable
class ChangeableEngine(Engine, Protocol):
    """An engine that takes deltas: it says what it has loaded, and changes single elements."""

    def own_tensors(self) -> Mapping[str, Tensor]:
        """The model's own tensors as they are loaded, in its number format; to be read only.

        They are those until the next swap. May be called from any thread.
        """
        ...

    async def change(
        self, changes: Sequence[ChangedTensor], specs: Sequence[TensorSpec], loaded: LoadedWeights
    ) -> float:
        """Swaps in the changes, as `Engine.apply` does whole tensors.

        Args:
            changes: Of the model's own tensors; those that are not named stay.
            specs: All of the model's own tensors as they are then.
            loaded: What is loaded then.
        """
        ...
