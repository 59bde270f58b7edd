"""A reward function that takes its service with it: the run ends or goes on, as configured."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import Served
from tests.support import run_folders
from tests.support.processes import Processes, Started
from tests.support.trainers import one_agent_trainer

from antiphon.clients.errors import CallError
from antiphon.learner import MAGRPOTrainer
from antiphon.services.common.hosting import EXIT_HUNG

ROWS = [{"prompt": prompt} for prompt in ("a red cat", "two dog b", "green c")]
JUDGE = """
import os, pathlib, signal, time

def reward(texts, batch_items):
    while batch_items[0]["prompt"] == "two dog b":
        pathlib.Path("met").touch()
        {fault}
    return [float(len(text)) for text in texts]
"""
FAULTS = {
    "hangs": ("time.sleep(0.01)", EXIT_HUNG, r"reward .*did not return within 0.5 s"),
    "dies": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "UNAVAILABLE"),
}


class Judge:
    """A reward service on a unix socket, in whose folder the file `met` says that it is away."""

    def __init__(self, processes: Processes, folder: Path, fault: str) -> None:
        (folder / "judge.py").write_text(JUDGE.format(fault=fault))
        self._processes = processes
        self._folder = folder
        self.address = f"unix:{folder / 'judge.sock'}"
        self.ends: list[int] = []
        self._now = self._started()

    def replace(self) -> None:
        """Where it is away, wait for its end, and for the next one to serve."""
        if not (self._folder / "met").exists():
            return
        self.ends.append(self._now.wait(timeout=60))
        (self._folder / "met").unlink()
        self._now = self._started()

    def _started(self) -> Started:
        name = f"judge-{len(self.ends)}"
        started = self._processes.antiphon(
            name,
            *("serve", "reward", "judge:reward", "--host", self.address, "--no-metrics"),
            *("--call-timeout", "0.5", "--grace-seconds", "2"),
            *("--address-file", str(self._folder / f"{name}.address.json")),
        )
        started.address()
        return started


def trainer_of(served: Served, judge: Judge, folder: Path, on_failure: str) -> MAGRPOTrainer:
    """Two seconds of failures are enough; a judge is there again before the last prompt is asked.

    Formatters are tried out on all rows before the run, too.
    """

    def ask(item: dict[str, Any]) -> str:
        if item == ROWS[2]:
            judge.replace()
        return str(item["prompt"])

    return one_agent_trainer(
        folder,
        served.model(0),
        served.tokenizer,
        served.addresses[:1],
        None,
        ROWS,
        {
            "on_score_failure": on_failure,
            "retry": {"attempts": 5, "initial_backoff": 0.5, "max_backoff": 0.5, "jitter": 0},
        },
        reward_address=judge.address,
        formatters=ask,
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_goes_on_without_the_rewards_where_that_is_configured(
    served: Served, tmp_path: Path, fault: str
) -> None:
    """U7: those of one prompt are missing, with the reason; the next one's are there."""
    code, ended_with, reason = FAULTS[fault]
    with Processes(tmp_path) as processes:
        judge = Judge(processes, tmp_path, code)
        trainer_of(served, judge, tmp_path, "missing").train()
        assert judge.ends == [ended_with]
    folder = tmp_path / "run"
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["state"], summary["prompts"]) == ("finished", 3)
    assert run_folders.total(run_folders.metrics(folder), "turn_1/missing_rewards") == 2
    rows = run_folders.rollout_rows(folder)
    assert [row["reward"] is None for row in rows] == [row["row"] == 1 for row in rows]
    assert [row["score"] is None for row in rows] == [row["row"] == 1 for row in rows]
    assert any(re.search(reason, row["missing_reason"] or "") for row in rows)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_ends_with_the_root_error_where_that_is_configured(
    served: Served, tmp_path: Path, fault: str
) -> None:
    """U7"""
    code, _, reason = FAULTS[fault]
    with Processes(tmp_path) as processes:
        judge = Judge(processes, tmp_path, code)
        with pytest.raises(CallError, match=f"Score at {judge.address} failed: .*{reason}"):
            trainer_of(served, judge, tmp_path, "stop").train()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["state"], summary["prompts"]) == ("failed", 1)
    assert f"Score at {judge.address} failed" in summary["error"]
