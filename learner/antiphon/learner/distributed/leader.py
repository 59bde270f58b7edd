"""The policies as rank 0 sees them: each one object, whose calls all of its ranks carry out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antiphon.clients.types import TensorDtype
from antiphon.learner.arithmetic.samples import TrainingSample
from antiphon.learner.checkpoints.state_files import read_tree, write_tree
from antiphon.learner.config.sharding import Placement, ShardingSettings
from antiphon.learner.distributed.ensemble import Ensemble
from antiphon.learner.distributed.job import Job, RankError
from antiphon.learner.distributed.placement import placed
from antiphon.learner.distributed.reference import ShardedReference, ranked_logprobs
from antiphon.learner.distributed.source import ModelSource
from antiphon.learner.distributed.weights import RankedWeights
from antiphon.learner.policy.adapters import base_of
from antiphon.learner.policy.micro_batches import Row
from antiphon.learner.policy.policy import PolicySettings, StepStats
from antiphon.learner.weights.wire_weights import WireWeights
from antiphon.services.common.lora import adapter_dtype
from antiphon.services.common.tensors import TORCH_DTYPES


class ShardedPolicy:
    """A policy whose model and optimiser are parted over ranks; used as `Policy` is.

    Attributes:
        agent: The agent, from 0.
        settings: How it is trained.
        wire_dtype: Number format of its weights on the wire.
        optimizer_steps: Optimiser steps so far.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        source: ModelSource,
        agent: int,
        settings: PolicySettings,
        *,
        wire_dtype: TensorDtype,
        offload: bool,
    ) -> None:
        self.agent, self.settings, self.wire_dtype = agent, settings, wire_dtype
        self.optimizer_steps = 0
        self._ensemble = ensemble
        shapes = ensemble.do(
            "make",
            agent=agent,
            source=source.model_dump(mode="json"),
            settings=asdict(settings),
            wire_dtype=wire_dtype.value,
            offload=offload,
        )
        self._shapes: dict[str, dict[str, tuple[int, ...]]] = {
            of: {name: tuple(shape) for name, shape in named.items()}
            for of, named in shapes.items()
        }

    def step(self, *minibatches: Sequence[TrainingSample]) -> StepStats:
        """As `Policy.step`; every rank computes its share of the completions."""
        samples = [[asdict(node) for node in minibatch] for minibatch in minibatches]
        stats = StepStats(**self._ensemble.do("step", agent=self.agent, minibatches=samples))
        self.optimizer_steps += stats.stepped
        return stats

    def wire_tensors(self) -> Mapping[str, Tensor]:
        """The weights to publish by name; each is gathered when it is looked at, and not kept."""
        return GatheredTensors(self, "wire", self._shapes["wire"])

    def wire_weights(self) -> WireWeights:
        """The weights, as a publisher asks for them."""
        return RankedWeights(self._ensemble, self.agent, self._shapes["wire"], self.wire_dtype)

    def logprobs(
        self, rows: Sequence[Row], *, tokens: int, size: int | None = None
    ) -> list[tuple[float, ...]]:
        """As `Policy.logprobs`; every rank computes its share of the completions."""
        return ranked_logprobs(self._ensemble, self.agent, "policy", rows, tokens=tokens, size=size)

    def reference(self, *, offload: bool) -> ShardedReference:
        """A frozen copy of it as it is now, parted over the same ranks."""
        return ShardedReference(self._ensemble, self.agent, self.wire_dtype, offload=offload)

    def model_tensors(self) -> Mapping[str, Tensor]:
        """The numbers in the model's own files, by name, as `wire_tensors`; tied ones once."""
        return GatheredTensors(self, "model", self._shapes["model"])

    def gather(self, name: str, of: str) -> Tensor:
        """One whole tensor, on the CPU, in its number format on the wire."""
        dtype = adapter_dtype(name, self.wire_dtype)
        data, _ = self._ensemble.collect(
            "tensor", agent=self.agent, tensor=name, of=of, dtype=dtype.value
        )
        return data.view(TORCH_DTYPES[dtype]).reshape(self._shapes[of][name])

    def write_state(self, folder: Path, name: str) -> None:
        """Write a checkpoint's part of this policy: every rank its own rows."""
        tree = self._ensemble.do("save", agent=self.agent, folder=str(folder), name=name)
        if "refused" in tree:
            raise OSError(tree["refused"])
        write_tree(folder, name, tree)

    def read_state(self, folder: Path, name: str) -> None:
        """Go on from a checkpoint, whatever number of ranks wrote it.

        Raises:
            FieldError: The state is of another model.
        """
        tree = read_tree(folder, name)
        self.optimizer_steps = self._ensemble.do(
            "load", agent=self.agent, folder=str(folder), name=name, tree=tree
        )

    def restore_dtype(self) -> None:
        """Nothing: what is saved of it is gathered."""


class GatheredTensors(Mapping[str, Tensor]):
    """Tensors of a sharded policy; looking at one gathers it on this rank."""

    def __init__(self, policy: ShardedPolicy, of: str, names: Iterable[str]) -> None:
        self._policy, self._of, self._names = policy, of, dict.fromkeys(names)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._policy.gather(name, self._of)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Leader:
    """Rank 0's hold on all others: makes policies on them, and lets them go at the end.

    Args:
        job: Of which this is rank 0.
        sources: Where the model of each policy is, by its first agent.
        settings: How policies are laid over the ranks.

    Attributes:
        sources: As given.
        side_by_side: Whether policies can be updated at once.
        ranks_here: Ranks that share this machine's cores.
    """

    def __init__(
        self, job: Job, sources: Mapping[int, ModelSource], settings: ShardingSettings
    ) -> None:
        self._offload = settings.offload
        self.sources = dict(sources)
        self.side_by_side = settings.placement == Placement.PER_AGENT
        self.ranks_here = job.ranks_here
        ranks = placed(settings.placement, len(sources), job.size)
        distinct = list(dict.fromkeys(ranks))
        job.channel.say({"do": "part", "groups": distinct})
        ensembles = {group.ranks: Ensemble(job, group) for group in job.groups(distinct)}
        self._ensembles = {
            agent: ensembles[members] for agent, members in zip(self.sources, ranks, strict=True)
        }
        self._policies: dict[int, ShardedPolicy] = {}

    def policy(
        self, agent: int, settings: PolicySettings, *, wire_dtype: TensorDtype
    ) -> ShardedPolicy:
        """Make a policy on its ranks."""
        made = ShardedPolicy(
            self._ensembles[agent],
            self.sources[agent],
            agent,
            settings,
            wire_dtype=wire_dtype,
            offload=self._offload,
        )
        self._policies[agent] = made
        return made

    def whole_model(self, agent: int) -> Any:
        """A policy's model with its weights, in this rank's main memory, to be saved."""
        model = self.sources[agent].architecture(torch.float32)
        tensors = {name: t.float() for name, t in self._policies[agent].model_tensors().items()}
        model.load_state_dict(tensors, assign=True, strict=False)
        base_of(model).tie_weights()
        return model

    def check(self) -> None:
        """See that every rank is there.

        Raises:
            RankError: One is not; tells its error.
        """
        for ensemble in self._distinct():
            ensemble.do("check")

    def close(self) -> None:
        """Let the other ranks go, as far as they are there."""
        for ensemble in self._distinct():
            with contextlib.suppress(RankError):
                ensemble.end()

    def _distinct(self) -> list[Ensemble]:
        return list(dict.fromkeys(self._ensembles.values()))
