"""Which errors of a rank are its own, and which are another's that it meets as a lost connection.

A job of one rank tells and asks the same store that the ranks of a larger one share.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from antiphon.learner.distributed.job import Job, RankError

CLOSED = "[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4711"


@pytest.fixture
def job() -> Iterator[Job]:
    job = Job(0, 1, dist.HashStore())
    yield job
    job.leave()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
        torch.OutOfMemoryError("CUDA out of memory while a connection was open"),
    ],
)
def test_the_error_of_a_rank_is_what_the_others_report(job: Job, error: RuntimeError) -> None:
    with pytest.raises(type(error)) as raised, job.telling_errors(), job.explaining():
        raise error
    assert raised.value is error
    with pytest.raises(RankError) as reported, job.telling_errors(), job.explaining():
        raise RuntimeError(CLOSED)
    assert str(error) in str(reported.value)
    assert "without a word" not in str(reported.value)


@pytest.mark.parametrize("error", [RuntimeError(CLOSED), dist.DistBackendError("aborted")])
def test_a_rank_that_is_lost_without_an_error_is_told_as_such(
    job: Job, error: RuntimeError
) -> None:
    with pytest.raises(RankError, match="ended without a word") as raised, job.explaining():
        raise error
    assert str(error) in str(raised.value)
