"""The run files of the examples are what the documents say of them."""

from pathlib import Path

import pytest
from examples.smollm2 import CACHE, NAME

from antiphon.learner.config.run_file import RunConfig, load_run_config

ROOT = Path(__file__).parents[3]
PROMPTS = (
    "Describe a city in the clouds:",
    "Invent a new holiday and explain it:",
    "Write a bedtime story for a dragon:",
    "Design a playground on Mars:",
)


def example(name: str) -> RunConfig:
    return load_run_config(ROOT / "examples" / name)


@pytest.mark.parametrize("name", ["full_job.toml", "distributed.toml"])
def test_the_full_job_is_four_prompts_two_epochs_four_generations_of_64_tokens(name: str) -> None:
    config = example(name)
    assert config.dataset.prompts == PROMPTS
    magrpo = config.magrpo
    assert (magrpo.num_turns, magrpo.num_train_epochs, magrpo.num_generations) == (2, 2, 4)
    assert magrpo.max_new_tokens == 64
    assert magrpo.early_termination_threshold == 0.9


def test_the_demo_is_smaller_than_the_full_job() -> None:
    demo, full = example("demo.toml"), example("full_job.toml")
    assert set(demo.dataset.prompts) < set(full.dataset.prompts)
    assert demo.magrpo.max_new_tokens < full.magrpo.max_new_tokens
    assert demo.magrpo.num_train_epochs < full.magrpo.num_train_epochs


@pytest.mark.parametrize("name", ["demo.toml", "full_job.toml", "distributed.toml"])
def test_the_model_is_where_the_conversion_puts_it(name: str) -> None:
    models = {agent.model for agent in example(name).agents}
    assert models == {str(CACHE / NAME)}
