"""A frozen reference of a sharded policy, parted over the same ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from antiphon.clients.digest import tensor_checksum, weights_digest
from antiphon.clients.types import TensorDtype, TensorSpec
from antiphon.learner.distributed.ensemble import Ensemble
from antiphon.learner.policy.micro_batches import Row
from antiphon.learner.policy.reference import check_same_reference


class ShardedReference:
    """As `antiphon.learner.policy.reference.Reference`; rank 0's hold on it.

    Args:
        ensemble: The ranks.
        agent: Whose policy it is a copy of.
        wire_dtype: Number format of weights on the wire.
        offload: Each rank holds its part in main memory.
    """

    def __init__(
        self, ensemble: Ensemble, agent: int, wire_dtype: TensorDtype, *, offload: bool
    ) -> None:
        self._ensemble, self._agent, self._wire_dtype = ensemble, agent, wire_dtype
        shapes = ensemble.do("refer", agent=agent, offload=offload)
        self._shapes = {name: tuple(shape) for name, shape in shapes.items()}

    def state_dict(self) -> dict[str, Any]:
        """The digest of its weights as on the wire; the weights are those of the run's model."""
        return {"digest": self._digest.hex()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Check that this is the reference that the run began with.

        Raises:
            FieldError: It has other weights.
        """
        check_same_reference(self._agent, self._digest.hex(), state["digest"])

    def logprobs(
        self, rows: Sequence[Row], *, tokens: int, size: int | None = None
    ) -> list[tuple[float, ...]]:
        """Log-probabilities of completions, full softmax at temperature 1."""
        return ranked_logprobs(
            self._ensemble, self._agent, "reference", rows, tokens=tokens, size=size
        )

    @cached_property
    def _digest(self) -> bytes:
        """Of all tensors, gathered one at a time."""
        dtype = self._wire_dtype
        specs = []
        for name, shape in self._shapes.items():
            data, _ = self._ensemble.collect(
                "tensor", agent=self._agent, tensor=name, of="reference", dtype=dtype.value
            )
            specs.append(TensorSpec(name, dtype, shape, tensor_checksum(data.numpy().data)))
        return weights_digest(specs)


def ranked_logprobs(
    ensemble: Ensemble,
    agent: int,
    of: str,
    rows: Sequence[Row],
    *,
    tokens: int,
    size: int | None = None,
) -> list[tuple[float, ...]]:
    """Log-probabilities of completions, of which every rank computes its share.

    Args:
        ensemble: The ranks.
        agent: Whose policy it is.
        of: ``"policy"`` or ``"reference"``.
        rows: The completions.
        tokens: As in `plain_logprobs`.
        size: As in `plain_logprobs`.
    """
    told = [(row.prompt_token_ids, row.completion.token_ids) for row in rows]
    data, sizes = ensemble.collect(
        "logprobs", agent=agent, of=of, rows=told, tokens=tokens, size=size
    )
    found: dict[int, tuple[float, ...]] = {}
    for part in torch.split(data, sizes):
        if part.numel():
            found |= {place: tuple(values) for place, values in json.loads(part.numpy().tobytes())}
    return [found[place] for place in range(len(rows))]
