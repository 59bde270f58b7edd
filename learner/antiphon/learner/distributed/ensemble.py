"""The ranks of one group as rank 0 commands them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from antiphon.learner.distributed.channel import END
from antiphon.learner.distributed.job import Group, Job, RankError
from antiphon.learner.distributed.member import Member


class Ensemble:
    """The ranks of one group as rank 0 commands them, one command at a time.

    After a command that failed on rank 0 they may stand in the midst of it, where nothing that is
    said reaches them: no further command is given, and they end with the process.

    Args:
        job: Of which they are.
        group: The ranks.
    """

    def __init__(self, job: Job, group: Group) -> None:
        self._job, self._group = job, group
        self._member = None if group.mesh is None else Member(group.mesh)
        self._turn = threading.Lock()
        self._failure: str | None = None

    def do(self, do: str, **arguments: Any) -> Any:
        """Have all ranks carry out a command; what it came to.

        Raises:
            RankError: Another rank failed or ended, or an earlier command failed.
        """
        command = {"do": do, **arguments}
        with self._commanding():
            self._group.channel.say(command)
            result = None if self._member is None else self._member.carry_out(command)
            return self._group.channel.answered(result)

    def collect(self, do: str, **arguments: Any) -> tuple[Tensor, list[int]]:
        """Have all ranks hand in bytes; all of them in order of rank, and how many each did.

        Raises:
            RankError: As `do`.
        """
        command = {"do": do, **arguments}
        with self._commanding():
            self._group.channel.say(command)
            mine = None if self._member is None else self._member.carry_out(command)
            return self._group.channel.collect(mine)

    def collect_each(
        self, do: str, times: int, **arguments: Any
    ) -> Iterator[tuple[Tensor, list[int]]]:
        """Have all ranks hand in bytes so many times, as `collect`. To be read to its end.

        Raises:
            RankError: As `do`.
        """
        command = {"do": do, **arguments}
        with self._commanding():
            self._group.channel.say(command)
            each = [None] * times if self._member is None else self._member.carry_out(command)
            for mine in each:
                yield self._group.channel.collect(mine)

    def end(self) -> None:
        """Let the other ranks go; nothing after a command that failed.

        Raises:
            RankError: One of them is gone already.
        """
        with self._turn, self._job.explaining():
            if self._failure is None:
                self._group.channel.say(END)

    @contextlib.contextmanager
    def _commanding(self) -> Iterator[None]:
        with self._turn:
            if self._failure is not None:
                raise RankError(
                    f"the ranks take no command after one that failed ({self._failure}); the run "
                    f"goes on from its last checkpoint with --resume"
                )
            try:
                with self._job.explaining():
                    yield
            except BaseException as error:
                self._failure = f"{type(error).__name__}: {error}"
                raise
