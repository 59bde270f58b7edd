"""When a run evaluates, what it keeps of it, and how those who ask are answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.clients.types import EvaluationResult
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.control.control import RunControl, StoppedError
from antiphon.learner.evaluation.best_models import BestModels
from antiphon.learner.evaluation.evaluation import OnTask
from antiphon.learner.evaluation.figures import EvaluatedTask, Evaluation
from antiphon.learner.evaluation.plan import Evaluations
from antiphon.learner.evaluation.requests import EvaluationRefusedError, EvaluationRequest
from antiphon.learner.weights.replicas import RunSupersededError

METRIC = "eval/turn_1/reward_mean"


class Stage:
    """Everything around the evaluations; `values` are those of the metric, one per evaluation."""

    def __init__(self, folder: Path, *, best: bool = False, **config: Any) -> None:
        self.config = MAGRPOConfig(**{"eval_interval": 2, "eval_num_samples": 2, **config})
        self.control = RunControl()
        self.made: list[tuple[int, int, int]] = []
        self.told: list[tuple[int, bool]] = []
        self.notes: list[str] = []
        self.values: list[float | None] = []
        self.before: Callable[[], Any] = lambda: None
        self.superseded = False
        self.record = SimpleNamespace(
            prompts_done=0,
            joint_actions=0,
            epoch=1,
            working_on=lambda stage, epoch: None,
            evaluated=lambda e, keep_trees: self.told.append((e.number, keep_trees)),
        )
        self.saved: list[Path] = []
        self.best = self._best(folder) if best else None
        self.evaluations = self.anew()

    def anew(self) -> Evaluations:
        """The evaluations as another process makes them."""
        return Evaluations(
            self.config,
            self,  # type: ignore[arg-type]
            record=self.record,  # type: ignore[arg-type]
            status=SimpleNamespace(  # type: ignore[arg-type]
                note=self.notes.append, agents=[SimpleNamespace(weights_version=3)]
            ),
            control=self.control,
            checkpoints=self,  # type: ignore[arg-type]
            best=self.best,
        )

    def _best(self, folder: Path) -> BestModels:
        def save(where: Path) -> None:
            where.mkdir()
            self.saved.append(where)

        return BestModels(folder, metric=METRIC, mode="max", save=save)

    def check_current(self) -> None:
        if self.superseded:
            raise RunSupersededError("another learner")

    async def evaluate(
        self, number: int, num_samples: int, on_task: OnTask = lambda _: None
    ) -> Evaluation:
        await asyncio.sleep(0)
        if (waiting := self.before()) is not None:
            await waiting
        self.made.append((self.record.prompts_done, number, num_samples))
        tasks = tuple(EvaluatedTask(f"row-{n}", None, (), {"x": n}) for n in range(num_samples))
        for task in tasks:
            on_task(task)
        value = self.values.pop(0) if self.values else 0.0
        figures = {} if value is None else {METRIC: value}
        return Evaluation(number, tasks, figures)

    async def run(self, prompts: int, *, by: int = 1) -> None:
        """As the training loop does it, from no prompt on."""
        await self.evaluations.if_due()
        for done in range(by, prompts + by, by):
            self.record.prompts_done = min(done, prompts)
            await self.evaluations.if_due(last=done >= prompts)

    @property
    def evaluated_at(self) -> list[int]:
        return [prompts for prompts, _, _ in self.made]


@pytest.mark.parametrize(
    ("prompts", "by", "interval", "evaluated_at"),
    [
        (5, 1, 2, [0, 2, 4, 5]),
        (4, 1, 2, [0, 2, 4]),
        (7, 3, 2, [0, 3, 6, 7]),
        (6, 1, 16, [0, 6]),
        (4, 1, 0, []),
    ],
)
async def test_at_the_start_every_interval_and_at_the_end_counted_over_the_run(
    tmp_path: Path, prompts: int, by: int, interval: int, evaluated_at: list[int]
) -> None:
    """With larger rollout batches an evaluation comes with the batch that passes the multiple."""
    stage = Stage(tmp_path, eval_interval=interval)
    await stage.run(prompts, by=by)
    assert stage.evaluated_at == evaluated_at
    assert [number for _, number, _ in stage.made] == list(range(1, len(evaluated_at) + 1))
    assert stage.told == [(number, True) for number in range(1, len(evaluated_at) + 1)]


async def test_nothing_is_evaluated_where_no_samples_are_wanted(tmp_path: Path) -> None:
    stage = Stage(tmp_path, eval_num_samples=0)
    await stage.run(4)
    assert stage.made == []
    assert stage.told == []


async def test_a_resumed_run_repeats_no_evaluation_and_counts_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.run(2)
    state = json.loads(json.dumps(stage.evaluations.state_dict()))
    stage.evaluations = stage.anew()
    stage.evaluations.load_state_dict(state)
    await stage.evaluations.if_due()
    assert stage.evaluated_at == [0, 2]
    stage.record.prompts_done = 4
    await stage.evaluations.if_due()
    assert stage.made[-1] == (4, 3, 2)


async def test_an_evaluation_that_a_stop_dropped_is_due_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)

    def stop() -> Any:
        stage.control.stop("SIGTERM")
        return asyncio.Event().wait()

    stage.before = stop
    async with asyncio.timeout(5):
        with pytest.raises(StoppedError):
            await stage.evaluations.if_due()
    assert stage.told == []
    again = Stage(tmp_path)
    again.evaluations.load_state_dict(stage.evaluations.state_dict())
    await again.evaluations.if_due()
    assert again.made == [(0, 1, 2)]


async def test_a_learner_that_was_taken_over_records_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.superseded = True
    with pytest.raises(RunSupersededError):
        await stage.evaluations.if_due()
    assert stage.told == []


async def test_the_best_models_are_kept_with_the_moment_that_they_are_of(tmp_path: Path) -> None:
    """No checkpoint is named, as it may be pruned; the one of then has the number of prompts."""
    stage = Stage(tmp_path, best=True)
    stage.values = [0.5, 0.75, 0.75, None]
    await stage.evaluations.if_due()
    about = json.loads((tmp_path / "best" / "best.json").read_text())
    assert (about["value"], about["prompts"]) == (0.5, 0)

    stage.record.prompts_done = 2
    await stage.evaluations.if_due()
    stage.record.prompts_done = 4
    await stage.evaluations.if_due()
    about = json.loads((tmp_path / "best" / "best.json").read_text())
    assert about == {
        "metric": METRIC,
        "mode": "max",
        "value": 0.75,
        "evaluation": 2,
        "epoch": 1,
        "prompts": 2,
        "joint_actions": 0,
        "weights_versions": [3],
    }
    stage.record.prompts_done = 6
    await stage.evaluations.if_due()
    assert f"evaluation 4 has no {METRIC}" in stage.notes[-1]
    assert len(stage.saved) == 2


async def test_a_disk_that_refuses_the_best_models_does_not_end_the_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "gone", best=True)
    stage.values = [0.5, 0.25]
    await stage.evaluations.if_due()
    assert "the best models could not be written: FileNotFoundError" in stage.notes[-1]
    (tmp_path / "gone").mkdir()
    stage.record.prompts_done = 2
    await stage.evaluations.if_due()
    assert json.loads((tmp_path / "gone" / "best" / "best.json").read_text())["value"] == 0.25


async def results(request: EvaluationRequest) -> list[EvaluationResult]:
    async with asyncio.timeout(5):
        return [result async for result in request.results()]


async def test_who_asks_gets_every_task_and_then_the_whole(tmp_path: Path) -> None:
    stage = Stage(tmp_path, best=True)
    assert not await stage.evaluations.answer()
    stage.values = [0.5, 0.25]
    asked = [stage.control.evaluations.ask(number) for number in (1, None)]
    assert await stage.evaluations.answer()
    assert await results(asked[0]) == [
        EvaluationResult("row-0", {"x": 0}),
        EvaluationResult("", {METRIC: 0.5}),
    ]
    assert [result.task_id for result in await results(asked[1])] == ["row-0", "row-1", ""]
    assert stage.made == [(0, 1, 1), (0, 2, 2)]
    assert stage.told == [(1, False), (2, False)]
    assert stage.saved == []


async def test_an_evaluation_that_was_asked_for_and_fails_does_not_end_the_run(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    failing = stage.control.evaluations.ask(1)

    def fail() -> None:
        if not stage.made:
            stage.made.append((0, 0, 0))
            raise ValueError("no such row")

    stage.before = fail
    other = stage.control.evaluations.ask(1)
    await stage.evaluations.answer()
    with pytest.raises(EvaluationRefusedError, match="ValueError: no such row"):
        await results(failing)
    assert len(await results(other)) == 2
    assert "failed: ValueError: no such row" in stage.notes[0]


async def test_who_has_gone_is_not_evaluated_for(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    gone = stage.control.evaluations.ask(1)
    waiting = asyncio.create_task(results(gone))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not await stage.evaluations.answer()
    assert stage.made == []


async def test_who_waits_when_the_run_ends_learns_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    first, second = (stage.control.evaluations.ask(1) for _ in range(2))

    def stop() -> Any:
        stage.control.stop("enough")
        return asyncio.Event().wait()

    stage.before = stop
    async with asyncio.timeout(5):
        with pytest.raises(StoppedError):
            await stage.evaluations.answer()
    for request in (first, second):
        with pytest.raises(EvaluationRefusedError, match="the run ends: enough"):
            await results(request)
    third = stage.control.evaluations.ask(1)
    stage.control.end()
    with pytest.raises(EvaluationRefusedError, match="has ended"):
        await results(third)
    with pytest.raises(EvaluationRefusedError, match="has ended"):
        stage.control.evaluations.ask(1)
