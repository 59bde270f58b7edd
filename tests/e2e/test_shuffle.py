"""The order in which runs with `shuffle` train the rows of a dataset."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import IterableDataset
from tests.e2e.conftest import Served
from tests.support.models import save_model
from tests.support.row_orders import shuffled_rows, shuffled_stream

from antiphon.learner import MAGRPOConfig, MAGRPOTrainer
from antiphon.learner.config.run_file import load_run_config
from antiphon.learner.record.rollout_reader import read_trees
from antiphon.learner.run.toml_run import train_from_config

SEED = 6
BUFFER = 3
ROWS = [{"prompt": prompt} for prompt in ("a red", "two dog", "green c", "one blue", "cat e")]
CONFIG = MAGRPOConfig(
    num_agents=1,
    num_turns=1,
    num_train_epochs=2,
    num_generations=2,
    max_new_tokens=3,
    temperature=1.0,
    shuffle=True,
    shuffle_buffer_size=BUFFER,
    seed=SEED,
)
ORDER = [(epoch, row) for epoch in (1, 2) for row in shuffled_rows(len(ROWS), SEED, epoch)]
STREAMED = [
    (epoch, row) for epoch in (1, 2) for row in shuffled_stream(len(ROWS), SEED, epoch, BUFFER)
]


def train(
    served: Served, folder: Path, dataset: Any, reward: Callable[..., Any], *, resume: bool = False
) -> None:
    MAGRPOTrainer(
        agents=[served.model(0)],
        num_agents=1,
        tokenizer=served.tokenizer,
        reward_func=reward,
        train_dataset=dataset,
        args=CONFIG,
        run_directory=folder / "runs",
        run_name="run",
        generation_addresses=served.addresses[:1],
        wandb_config={"verbose": False},
    ).train(resume_from_checkpoint=resume)


def letters(texts: list[str]) -> list[float]:
    return [float(len(text)) for text in texts]


def trained(folder: Path) -> list[tuple[int, int]]:
    """Epoch and row of each tree that was trained, in order."""
    trees = read_trees(folder / "runs" / "run" / "rollouts")
    return [(root.epoch, root.row) for root, *_ in trees]


def test_no_epoch_is_in_the_order_of_the_dataset_nor_in_that_of_another() -> None:
    """Else what follows would hold for a run that does not shuffle."""
    epochs = [
        [row for epoch, row in order if epoch == e] for order in (ORDER, STREAMED) for e in (1, 2)
    ]
    assert all(sorted(epoch) == list(range(5)) != epoch for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert epochs[2] != epochs[3]


def test_a_script_trains_the_rows_in_the_order_of_seed_and_epoch(
    served: Served, tmp_path: Path
) -> None:
    train(served, tmp_path, ROWS, letters)
    assert trained(tmp_path) == ORDER


def test_a_run_file_trains_the_rows_in_the_order_of_seed_and_epoch(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path / "model", served.model(0), served.tokenizer)
    (tmp_path / "letters_task.py").write_text(
        "def reward(texts):\n    return [float(len(text)) for text in texts]\n"
    )
    prompts = ", ".join(f'"{row["prompt"]}"' for row in ROWS)
    (tmp_path / "run.toml").write_text(
        f"""
        [run]
        name = "run"
        directory = "runs"
        [magrpo]
        num_turns = 1
        num_train_epochs = 2
        num_generations = 2
        max_new_tokens = 3
        temperature = 1.0
        shuffle = true
        seed = {SEED}
        [[agents]]
        model = "model"
        addresses = ["{served.addresses[0]}"]
        [reward]
        function = "letters_task:reward"
        [dataset]
        prompts = [{prompts}]
        """
    )
    monkeypatch.chdir(tmp_path)
    train_from_config(load_run_config(tmp_path / "run.toml", environ={}))
    assert trained(tmp_path) == ORDER


@pytest.mark.parametrize(
    ("dataset", "order"),
    [
        (ROWS, ORDER),
        (IterableDataset.from_generator(lambda: iter(ROWS)), STREAMED),
    ],
    ids=["list", "IterableDataset"],
)
def test_a_run_that_was_stopped_in_its_second_epoch_goes_on_in_its_order(
    served: Served, tmp_path: Path, dataset: Any, order: list[tuple[int, int]]
) -> None:
    """L22 and S12: stopped in the seventh prompt, which is dropped."""
    calls: list[str] = []

    def stops(texts: list[str]) -> list[float]:
        calls.extend(texts)
        if len(calls) == 2 * 6 + 1:
            signal.raise_signal(signal.SIGINT)
        return letters(texts)

    with pytest.raises(KeyboardInterrupt):
        train(served, tmp_path, dataset, stops)
    assert trained(tmp_path) == order[:6]
    train(served, tmp_path, dataset, letters, resume=True)
    assert trained(tmp_path) == order
