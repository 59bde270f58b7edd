"""What rank 0 says to the ranks of a group, and what it does not after a command failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from antiphon.learner.distributed.channel import END, Channel
from antiphon.learner.distributed.ensemble import Ensemble
from antiphon.learner.distributed.job import Group, Job, RankError


class Recorded(Channel):
    """Keeps what is said; what comes back is an error."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.said: list[dict[str, Any]] = []
        self._error = error

    def say(self, command: dict[str, Any]) -> None:
        self.said.append(command)

    def answered(self, result: Any) -> Any:
        if self._error is not None:
            raise self._error
        return result

    def collect(self, mine: Tensor | None) -> tuple[Tensor, list[int]]:
        if self._error is not None:
            raise self._error
        return torch.ones(2, dtype=torch.uint8), [0, 2]


@pytest.fixture
def job() -> Iterator[Job]:
    job = Job(0, 1, dist.HashStore())
    yield job
    job.leave()


def check(ensemble: Ensemble) -> None:
    ensemble.do("check")


def collect(ensemble: Ensemble) -> None:
    ensemble.collect("tensor", dtype="float32")


@pytest.mark.parametrize("command", [check, collect])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), KeyboardInterrupt("now")])
def test_nothing_is_said_after_a_command_that_failed_on_rank_0(
    job: Job, command: Callable[[Ensemble], None], error: BaseException
) -> None:
    """The other ranks stand in the command: what nobody hears would be waited for without end."""
    channel = Recorded(error)
    ensemble = Ensemble(job, Group((1,), None, channel))
    with pytest.raises(type(error)):
        command(ensemble)
    assert len(channel.said) == 1
    for again in (check, collect):
        with pytest.raises(RankError, match=f"failed .*{error}"):
            again(ensemble)
    ensemble.end()
    assert len(channel.said) == 1


def test_ranks_whose_commands_went_well_are_let_go(job: Job) -> None:
    channel = Recorded()
    ensemble = Ensemble(job, Group((1,), None, channel))
    check(ensemble)
    collect(ensemble)
    ensemble.end()
    assert channel.said == [{"do": "check"}, {"do": "tensor", "dtype": "float32"}, END]
