"""What rank 0 and a group of ranks say to each other, as JSON, and the bytes that they hand in.

All ranks of a channel take part in every exchange, in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

END = {"do": "end"}
"""The last command: part from each other."""
_LEADER = 0


class Channel:
    """Joins rank 0 with others.

    Args:
        group: Of gloo, of these ranks.
        ranks: Ascending, 0 among them.
        first: The rank that answers for those that hold a policy.
    """

    def __init__(self, group: ProcessGroup, ranks: Sequence[int], *, first: int = 0) -> None:
        self._group, self._ranks, self._first = group, tuple(ranks), first

    def say(self, command: dict[str, Any]) -> None:
        """As rank 0: tell the others what comes next."""
        self._broadcast(json.dumps(command).encode(), _LEADER)

    def hear(self) -> dict[str, Any]:
        """As another rank: wait until rank 0 says what comes next."""
        return dict(json.loads(self._broadcast(None, _LEADER)))

    def answered(self, result: Any) -> Any:
        """What a command came to, for rank 0: its own result where it holds a part itself."""
        if self._first == _LEADER:
            return result
        mine = json.dumps(result).encode() if dist.get_rank() == self._first else None
        return json.loads(self._broadcast(mine, self._first))

    def collect(self, mine: Tensor | None) -> tuple[Tensor, list[int]]:
        """What all hand in, for rank 0: the bytes of each in order of rank, and how many each has.

        Args:
            mine: This rank's own, uint8 on the CPU; None of a rank that holds no part.

        Returns:
            On rank 0, one tensor of bytes and the sizes of its parts; elsewhere nothing.
        """
        mine = torch.empty(0, dtype=torch.uint8) if mine is None else mine
        counts = [torch.zeros(1, dtype=torch.int64) for _ in self._ranks]
        dist.all_gather(counts, torch.tensor([mine.numel()]), group=self._group)
        if dist.get_rank() != _LEADER:
            if mine.numel():
                dist.send(mine, _LEADER, group=self._group)
            return mine.new_empty(0), []
        sizes = [int(count) for count in counts]
        room = torch.empty(sum(sizes), dtype=torch.uint8)
        coming = []
        for rank, part in zip(self._ranks, torch.split(room, sizes), strict=True):
            if rank == _LEADER:
                part.copy_(mine)
            elif part.numel():
                coming.append(dist.irecv(part, rank, group=self._group))
        for work in coming:
            if work is not None:
                work.wait()
        return room, sizes

    def _broadcast(self, data: bytes | None, source: int) -> bytes:
        size = torch.tensor([0 if data is None else len(data)])
        dist.broadcast(size, source, group=self._group)
        room = torch.empty(int(size), dtype=torch.uint8)
        if data is not None:
            room = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(room, source, group=self._group)
        return room.numpy().tobytes()
