"""The job that torchrun started: who this process is in it, its groups, and how it ends."""

from __future__ import annotations

import os
import re
import socket
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from antiphon.learner.distributed.channel import Channel
from antiphon.services.common.allocator import keep_no_freed_blocks
from antiphon.services.common.errors import StartError

PATIENCE = timedelta(days=365)
"""How long a rank waits for the next command: rollouts take what they take, and a process that has
ended is noticed by its connections."""
_ERROR = "antiphon/error"
_CONNECTION = re.compile(r"gloo|nccl|connection|broken pipe", re.IGNORECASE)
"""In what backends say of a broken connection where they raise a bare RuntimeError."""
_TOLD = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)


class RankError(StartError):
    """A rank of the learner failed or ended, and the whole job ends with it."""


@dataclass(frozen=True)
class Group:
    """Ranks that hold policies together.

    `mesh` is None in a process that is not of them; `channel` joins them with rank 0.
    """

    ranks: tuple[int, ...]
    mesh: DeviceMesh | None
    channel: Channel


class Job:
    """This process as one rank of a job.

    Attributes:
        rank: From 0, which leads.
        size: How many there are.
        ranks_here: How many of them share this machine.
        device: What this rank computes on: its CUDA device, or the CPU where the node has none.
        channel: Joins all ranks.
    """

    def __init__(self, rank: int, size: int, store: Store) -> None:
        self.rank, self.size, self._store = rank, size, store
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", local) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo", store=store, rank=rank, world_size=size
        )
        self.channel = Channel(dist.new_group(backend="gloo", timeout=PATIENCE), range(size))

    @classmethod
    def join(cls) -> Job:
        """Meet the other ranks, as torchrun's environment says; then take it out of there.

        What this process starts is no rank, and engines that found it would think that they were.
        """
        keep_no_freed_blocks()
        store, rank, size = next(iter(rendezvous("env://")))
        job = cls(rank, size, store)
        for name in _TOLD:
            os.environ.pop(name, None)
        return job

    def groups(self, ranks: Sequence[Sequence[int]]) -> list[Group]:
        """Make groups of ranks; every rank calls this with the same ones."""
        return [self._group(tuple(members)) for members in ranks]

    def _group(self, ranks: tuple[int, ...]) -> Group:
        members: ProcessGroup = dist.new_group(list(ranks))
        joined = sorted({0, *ranks})
        channel = Channel(
            dist.new_group(joined, backend="gloo", timeout=PATIENCE), joined, first=ranks[0]
        )
        mesh = None
        if self.rank in ranks:
            mesh = DeviceMesh.from_group(members, self.device.type, mesh=list(ranks))
        return Group(ranks, mesh, channel)

    @contextmanager
    def telling_errors(self) -> Iterator[None]:
        """Whatever is raised within it is known to the other ranks before this one ends."""
        try:
            yield
        except Exception as error:
            first = self._store.add(f"{_ERROR}/count", 1) == 1
            if first and not isinstance(error, RankError):
                trace = "".join(traceback.format_exception(error))
                told = f"{type(error).__name__}: {error}\n{trace}"
                self._store.set(_ERROR, f"rank {self.rank} on {socket.gethostname()}: {told}")
            raise

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """A connection that breaks within it is reported as what another rank says that it met.

        Raises:
            RankError: The root error of another rank, or that one ended without a word.
            RuntimeError: What is of no connection, as it was: this rank's own error.
        """
        try:
            yield
        except RuntimeError as error:
            if not _of_a_connection(error):
                raise
            raise RankError(self._root_error(error)) from error

    def _root_error(self, met: Exception) -> str:
        if self._store.check([_ERROR]):
            return f"the learner ends, as one of its {self.size} ranks failed: " + (
                self._store.get(_ERROR).decode()
            )
        return (
            f"one of the {self.size} ranks of the learner ended without a word (killed, or out of "
            f"memory); the report of torchrun below names it. The run goes on from its last "
            f"checkpoint with --resume. Rank {self.rank} met: {met}"
        )

    def leave(self) -> None:
        """Part from the other ranks."""
        dist.destroy_process_group()


def _of_a_connection(error: RuntimeError) -> bool:
    if isinstance(error, torch.OutOfMemoryError):
        return False
    return isinstance(error, dist.DistError) or bool(_CONNECTION.search(str(error)))
