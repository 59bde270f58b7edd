"""A run of real services that stands still, because of code that has no deadline of its own."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from datasets import IterableDataset
from tests.e2e.conftest import Served
from tests.e2e.tiny_task import reward as weigh
from tests.support import run_folders
from tests.support.trainers import one_agent_trainer

from antiphon.clients.errors import CallError
from antiphon.clients.learner import LearnerClient
from antiphon.clients.types import Run, RunState
from antiphon.learner import MAGRPOTrainer
from antiphon.learner.run import assemble, launch
from antiphon.learner.run.watchdog import NoProgressError, Watchdog

DEADLINES = (
    *("score_timeout", "transition_timeout", "generate_timeout"),
    *("push_timeout", "control_timeout", "start_timeout", "replicas_timeout"),
)


def reward_of(texts: list[str]) -> list[float]:
    return [weigh([text]) for text in texts]


def trainer_of(
    served: Served,
    folder: Path,
    rows: list[dict[str, str]],
    reward: Callable[[list[str]], list[float]] = reward_of,
    settings: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> MAGRPOTrainer:
    """Of a run that may stand still for six seconds."""
    return one_agent_trainer(
        folder,
        served.model(0),
        served.tokenizer,
        served.addresses[:1],
        reward,
        rows,
        {
            "checkpoint_interval": 0,
            "progress_timeout": 6,
            "retry": {"deadline_attempts": 20},
            **dict.fromkeys(DEADLINES, 5),
            **settings,
        },
        **options,
    )


def test_a_formatter_that_never_returns_ends_the_run_by_name_and_what_was_trained_is_saved(
    served: Served, tmp_path: Path
) -> None:
    """S5: the root error is what the caller gets, and it says who did not answer."""
    rows = [{"prompt": prompt} for prompt in ("a red cat", "two dog b", "green c")]
    asked: list[str] = []

    def formatter(item: dict[str, Any]) -> str:
        # Each row is written once before the run, to see whether it fits.
        asked.append(item["prompt"])
        if len(asked) == len(rows) + 2:
            time.sleep(10**6)
        return str(item["prompt"])

    trainer = trainer_of(served, tmp_path, rows, formatters=formatter)
    with pytest.raises(NoProgressError) as caught:
        trainer.train()
    said = str(caught.value)
    assert "no progress for 6 s (progress_timeout) while working on generate of epoch 1" in said
    assert "formatter" in said
    assert "your code on the main thread" in said
    summary = (tmp_path / "run" / "summary.json").read_text()
    assert "NoProgressError" in summary
    assert len(run_folders.metrics(tmp_path / "run")) == 1
    saved = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert saved == ["checkpoint-00000001"]


def test_an_evaluation_outside_of_training_is_watched_like_a_run(
    served: Served, tmp_path: Path
) -> None:
    """S5: what has no deadline there either is named."""

    def rows() -> Iterator[dict[str, str]]:
        yield {"prompt": "a red cat"}
        time.sleep(10**6)

    trainer = trainer_of(
        served,
        tmp_path,
        [{"prompt": "a red cat"}],
        eval_dataset=IterableDataset.from_generator(rows),
    )
    assert "eval/turn_1/reward_mean" in trainer.evaluate(1)
    with pytest.raises(NoProgressError) as caught:
        trainer.evaluate(2)
    said = str(caught.value)
    assert "no progress for 6 s (progress_timeout) while evaluating" in said
    assert "waiting for: eval_dataset, your code on the main thread" in said


def test_an_evaluation_asked_for_while_the_run_is_paused_is_watched_too(
    served: Served, tmp_path: Path
) -> None:
    """S5: only a run that has nothing to do until its pause ends may stand still."""

    def rows() -> Iterator[dict[str, str]]:
        yield {"prompt": "a red cat"}
        time.sleep(10**6)

    answers: list[str] = []

    async def ask_once_paused() -> None:
        address = json.loads((tmp_path / "run" / "learner.json").read_text())["address"]
        async with LearnerClient(address) as client:
            await client.pause(5)
            paused.set()
            async for event in client.watch():
                if isinstance(event.event, Run) and event.event.state is RunState.PAUSED:
                    break
            try:
                async for _ in client.evaluate(2, timeout=100):
                    pass
            except CallError as error:
                answers.append(str(error))

    paused = threading.Event()
    asks = threading.Thread(target=asyncio.run, args=(ask_once_paused(),))

    def reward(texts: list[str]) -> list[float]:
        if not paused.is_set():
            asks.start()
            assert paused.wait(60)
        return reward_of(texts)

    trainer = trainer_of(
        served,
        tmp_path,
        [{"prompt": "a red cat"}, {"prompt": "two dog b"}],
        reward,
        {"eval_interval": 0},
        eval_dataset=IterableDataset.from_generator(rows),
    )
    with pytest.raises(NoProgressError) as caught:
        trainer.train()
    asks.join(60)
    said = str(caught.value)
    assert "no progress for 6 s (progress_timeout) while working on evaluating of epoch 1" in said
    assert "waiting for: eval_dataset, your code on the main thread" in said
    assert answers[0].endswith("no evaluation can be made: the run ends")


def test_a_thread_that_hangs_after_the_run_has_its_process_ended(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5: the end of an event loop waits for its threads, and would wait for that one for ever."""
    hangs, said = threading.Event(), list[str]()

    def end_process(message: str) -> None:
        said.append(message)
        hangs.set()

    def policies_of(_setup: object) -> None:
        assert hangs.wait(120), "nobody ended the process"

    monkeypatch.setattr(assemble, "policies_of", policies_of)
    watchdog = partial(Watchdog, end_seconds=1, end_process=end_process)
    monkeypatch.setattr(launch, "Watchdog", watchdog)
    with pytest.raises(NoProgressError, match="no progress for 6 s"):
        trainer_of(served, tmp_path, [{"prompt": "a red cat"}]).train()
    assert "it did not end within 1 s either, so the process ends at once" in said[0]
    assert "NoProgressError" in (tmp_path / "run" / "summary.json").read_text()
