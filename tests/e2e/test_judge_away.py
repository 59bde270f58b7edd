"""A reward function that takes its service with it: the run ends or goes on, as configured."""

from __future__ import annotations

import asyncio
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
from antiphon.clients.generation import GenerationClient
from antiphon.learner import MAGRPOConfig, MAGRPOTrainer
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
    """A judge is there again before the last prompt is asked.

    Calls are made again for longer than a channel waits before it connects again, six seconds.
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
            "retry": {"attempts": 14, "initial_backoff": 0.5, "max_backoff": 0.5, "jitter": 0},
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


@pytest.mark.parametrize("judge", ["reward", "transition"])
def test_a_run_whose_judge_is_not_there_ends_before_it_pushes_or_samples(
    served: Served, tmp_path: Path, judge: str
) -> None:
    nobody = f"unix:{tmp_path}/nobody.sock"
    trainer = MAGRPOTrainer(
        agents=[served.model(0)],
        num_agents=1,
        tokenizer=served.tokenizer,
        reward_func=None if judge == "reward" else lambda texts: [0.0] * len(texts),
        train_dataset=ROWS,
        args=MAGRPOConfig(num_agents=1, num_turns=2, max_new_tokens=4, start_timeout=0.5),
        run_directory=tmp_path,
        run_name="run",
        generation_addresses=served.addresses[:1],
        reward_address=nobody if judge == "reward" else None,
        transition_address=nobody,
    )
    with pytest.raises(CallError) as raised:
        trainer.train()
    told = str(raised.value)
    assert told.startswith(f"Check at {nobody} failed: UNAVAILABLE: ")
    assert "nothing listens there: start the service" in told
    run_id = json.loads((tmp_path / "run" / "run.json").read_text())["run_id"]
    assert asyncio.run(last_run(served.addresses[0])) != run_id


async def last_run(address: str) -> str:
    """Whose weights a service has; nothing is sampled for a run that has pushed none."""
    async with GenerationClient(address) as client:
        return (await client.get_model_info(20)).loaded.run_id
