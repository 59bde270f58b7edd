"""One rank's part of the policies, and the commands that all of a policy's ranks carry out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from antiphon.clients.types import TensorDtype
from antiphon.learner.arithmetic.samples import TrainingSample
from antiphon.learner.checkpoints.state_files import packed, unpacked
from antiphon.learner.distributed import state
from antiphon.learner.distributed.shards import give_back, held_part, sharded_copy, sharded_model
from antiphon.learner.distributed.sharing import MeshRanks
from antiphon.learner.distributed.source import ModelSource
from antiphon.learner.policy.forward import Forward
from antiphon.learner.policy.logprobs import plain_logprobs
from antiphon.learner.policy.micro_batches import plain_row
from antiphon.learner.policy.policy import Policy, PolicySettings
from antiphon.learner.weights.wire_part import WirePart
from antiphon.services.common.tensors import TORCH_DTYPES, tensor_shapes, wire_tensors

SETTINGS = TypeAdapter(PolicySettings)
MINIBATCHES = TypeAdapter(list[list[TrainingSample]])


@dataclass
class _Held:
    """This rank's part of one policy.

    Attributes:
        policy: In training.
        source: Where its model came from.
        wire: The tensors that are published, as they are.
        published: And as they were published last.
        reference: What computes a frozen copy, once there is one.
    """

    policy: Policy
    source: ModelSource
    wire: dict[str, Tensor]
    published: WirePart
    reference: Forward | None = None

    def forward(self, of: str) -> Forward:
        """The policy's, or the reference's."""
        forward = self.reference if of == "reference" else self.policy.forward
        assert forward is not None  # rank 0 asks for a reference first
        return forward


class Member:
    """This rank's part of the policies of a group.

    Args:
        mesh: The ranks of the group.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._held: dict[int, _Held] = {}
        self._commands: dict[str, Callable[..., Any]] = {
            "check": self._check,
            "make": self._make,
            "refer": self._refer,
            "step": self._step,
            "logprobs": self._logprobs,
            "tensor": self._tensor,
            "sample": self._sample,
            "publish": self._publish,
            "published": self._published,
            "save": self._save,
            "load": self._load,
        }

    def carry_out(self, command: Mapping[str, Any]) -> Any:
        """Do this rank's part of a command.

        Returns:
            What it came to, as JSON has it; or bytes that this rank hands in (uint8, on the CPU),
            once or several times.
        """
        arguments = {name: value for name, value in command.items() if name != "do"}
        return self._commands[command["do"]](**arguments)

    def _check(self) -> None:
        """Wait for all."""
        dist.barrier(group=self._mesh.get_group())

    def _make(
        self, *, agent: int, source: Any, settings: Any, wire_dtype: str, offload: bool
    ) -> dict[str, Any]:
        """Hold a part of a policy; the shapes of its tensors on the wire and in its model."""
        told: PolicySettings = SETTINGS.validate_python(settings)
        wire, where = TensorDtype(wire_dtype), ModelSource.model_validate(source)
        model = sharded_model(
            where, self._mesh, wire=wire, compute=told.compute_dtype, offload=offload
        )
        policy = Policy(agent, model, told, wire_dtype=wire, ranks=MeshRanks(self._mesh))
        give_back(model)  # what a model can do was found out by trying it
        sent = dict(sorted(policy.wire_tensors().items()))
        self._held[agent] = _Held(policy, where, sent, WirePart(wire))
        return {"wire": tensor_shapes(sent), "model": tensor_shapes(_saved(model))}

    def _refer(self, *, agent: int, offload: bool) -> dict[str, Any]:
        """Freeze a copy of a policy as it is now; the shapes of its tensors."""
        held = self._held[agent]
        model = sharded_copy(
            held.policy.model,
            held.source,
            self._mesh,
            compute=held.policy.settings.compute_dtype,
            wire=held.policy.wire_dtype,
            offload=offload,
        )
        held.reference = Forward(model)
        give_back(model)
        return tensor_shapes(wire_tensors(model))

    def _step(self, *, agent: int, minibatches: Any) -> dict[str, Any]:
        """One optimiser step; its figures."""
        samples: list[list[TrainingSample]] = MINIBATCHES.validate_python(minibatches)
        return asdict(self._held[agent].policy.step(*samples))

    def _logprobs(self, *, agent: int, of: str, rows: Any, tokens: int, size: int | None) -> Tensor:
        """Hand in log-probabilities of this rank's completions, each with its place among all."""
        forward, ranks = self._held[agent].forward(of), MeshRanks(self._mesh)
        every = [plain_row(tuple(prompt), tuple(completion)) for prompt, completion in rows]
        place = {id(row): number for number, row in enumerate(every)}
        own = ranks.share(every)
        device = torch.device(self._mesh.device_type)
        found = plain_logprobs(forward, own, device, tokens=tokens, size=size, ranks=ranks)
        give_back(forward.model)
        told = [[place[id(row)], logprobs] for row, logprobs in zip(own, found, strict=True)]
        return torch.frombuffer(bytearray(json.dumps(told).encode()), dtype=torch.uint8)

    @torch.no_grad()
    def _tensor(self, *, agent: int, tensor: str, of: str, dtype: str) -> Tensor:
        """Hand in this rank's part of a tensor."""
        held = self._held[agent]
        if of == "wire":
            tensors = held.wire
        elif of == "model":
            tensors = _saved(held.policy.model)
        else:
            tensors = wire_tensors(held.forward(of).model)
        part = self._part(tensors[tensor])
        return part.to("cpu", TORCH_DTYPES[TensorDtype(dtype)]).view(torch.uint8)

    def _sample(self, *, agent: int, stride: int) -> Tensor:
        """Hand in some elements of all tensors: as they were published, then as they are."""
        held = self._held[agent]
        pairs = [held.published.sample(n, self._part(t), stride) for n, t in held.wire.items()]
        kept, present = zip(*pairs, strict=True)
        return _bytes(np.concatenate([*kept, *present]))

    def _publish(self, *, agent: int, exponent: int | None) -> Iterator[Tensor]:
        """Keep this rank's part of all tensors as they are, and hand in one after the other.

        Of each what changed, where an `exponent` says how to tell it, and its bytes.
        """
        held = self._held[agent]
        for name, tensor in held.wire.items():
            if exponent is None:
                held.published.keep(name, self._part(tensor))
                yield _bytes(held.published.kept(name))
            else:
                change = held.published.advance(name, self._part(tensor), exponent).part()
                told = torch.frombuffer(bytearray(change.to_bytes()), dtype=torch.uint8)
                yield torch.cat([told, _bytes(held.published.kept(name))])

    def _published(self, *, agent: int, tensor: str) -> Tensor:
        """Hand in this rank's part of a tensor as it was published."""
        return _bytes(self._held[agent].published.kept(tensor))

    def _part(self, tensor: Tensor) -> Tensor:
        """What this rank answers for, flat: its rows; of a tensor that all have, the first all."""
        part = held_part(tensor).detach().reshape(-1)
        first = self._mesh.get_local_rank() == 0
        return part if first or isinstance(tensor, DTensor) else part[:0]

    def _save(self, *, agent: int, folder: str, name: str) -> Any:
        """Write this rank's part of a checkpoint; the tree that its tensors are of.

        What a disk refuses ends no rank: the run goes on without this checkpoint.
        """
        tree, tensors = packed(self._held[agent].policy.state_dict(), name)
        try:
            state.save(Path(folder) / name, tensors, self._mesh.get_group())
        except CheckpointException as error:
            return {"refused": str(error)}
        return tree

    def _load(self, *, agent: int, folder: str, name: str, tree: Any) -> int:
        """Go on from a checkpoint of any number of ranks; the optimiser steps so far.

        Raises:
            OSError: A rank could not read its part; on every rank.
        """
        policy = self._held[agent].policy
        parameters = dict(policy.model.named_parameters())
        try:
            tensors = state.load(Path(folder), name, parameters, self._mesh)
        except CheckpointException as error:  # no Exception: nothing else would tell of it
            raise OSError(str(error)) from error
        policy.load_state_dict(unpacked(tree, tensors))
        return policy.optimizer_steps


def _bytes(array: npt.NDArray[Any]) -> Tensor:
    """An array's bytes to be handed in, sharing its memory."""
    return torch.from_numpy(array.view(np.uint8))


def _saved(model: nn.Module) -> dict[str, Tensor]:
    """The floating-point entries of a model's state, tied ones once."""
    entries: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if tensor.is_floating_point():
            entries.setdefault(id(tensor), (name, tensor))
    return dict(entries.values())
