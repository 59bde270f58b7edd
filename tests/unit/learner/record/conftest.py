"""The folder of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.learner.record.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "run")
