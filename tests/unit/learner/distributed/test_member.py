"""What a rank's part of a checkpoint is refused with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch.distributed as dist
from tests.support.policies import SETTINGS, make_model
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

from antiphon.learner.distributed.ensemble import Ensemble
from antiphon.learner.distributed.job import Job
from antiphon.learner.distributed.source import ModelSource


@pytest.fixture
def ensemble() -> Iterator[Ensemble]:
    """A job of one rank, which holds its policies whole."""
    job = Job(0, 1, dist.HashStore())
    (group,) = job.groups([(0,)])
    yield Ensemble(job, group)
    job.leave()


def test_a_checkpoint_that_cannot_be_read_is_an_ordinary_error(
    ensemble: Ensemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(seed=4).save_pretrained(tmp_path / "model")
    ensemble.do(
        "make",
        agent=0,
        source=ModelSource(agent=0, model=str(tmp_path / "model"), seed=3).model_dump(mode="json"),
        settings=asdict(SETTINGS),
        wire_dtype="float32",
        offload=False,
    )
    tree = ensemble.do("save", agent=0, folder=str(tmp_path), name="policy_0")

    def refuse(*_: object) -> None:
        raise ValueError("the disk is gone")

    monkeypatch.setattr(HuggingFaceStorageReader, "read_data", refuse)
    with pytest.raises(OSError, match="the disk is gone"):
        ensemble.do("load", agent=0, folder=str(tmp_path), name="policy_0", tree=tree)
