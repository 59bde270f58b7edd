"""A rank that is not the first: it carries out what rank 0 says until all is over."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import torch
from torch import Tensor

from antiphon.learner.distributed.channel import END
from antiphon.learner.distributed.job import Group, Job
from antiphon.learner.distributed.member import Member
from antiphon.learner.run.setup import usable_cores


def serve(job: Job) -> None:
    """Carry out commands until the end.

    Signals to end go to rank 0, which ends the run in order and then this process; where rank 0 is
    gone, the connection to it breaks and this process ends by itself.

    Raises:
        RankError: Another rank is gone.
        Exception: What a command failed with here; the other ranks are told.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(max(1, usable_cores() // job.ranks_here))
    with job.telling_errors(), job.explaining():
        command = job.channel.hear()
        if command != END:
            _take_part(job, job.groups(command["groups"]))
    job.leave()


def _take_part(job: Job, groups: list[Group]) -> None:
    (own,) = (group for group in groups if job.rank in group.ranks)
    assert own.mesh is not None  # this rank is of it
    channel, member = own.channel, Member(own.mesh)
    while (command := channel.hear()) != END:
        result = member.carry_out(command)
        if isinstance(result, Tensor):
            channel.collect(result)
        elif isinstance(result, Iterator):
            for one in result:
                channel.collect(one)
        else:
            channel.answered(result)
