"""Trainers of one tiny agent on a task of one turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphon.clients.endpoint import Endpoint
from antiphon.learner import MAGRPOConfig, MAGRPOTrainer


def one_agent_trainer(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    addresses: Sequence[Endpoint | str],
    reward: Callable[[list[str]], list[float]] | None,
    rows: Sequence[dict[str, str]],
    settings: dict[str, Any],
    **options: Any,
) -> MAGRPOTrainer:
    """Its run is in `folder`/run, and two samples a prompt are generated at `addresses`.

    Args:
        folder: Where runs are kept.
        model: The agent.
        tokenizer: The agent's.
        addresses: Of its generation services.
        reward: Scores completions; None where `options` say who does.
        rows: What it is trained on, in one epoch.
        settings: What else there is to say in the config.
        options: What else there is to say to the trainer.
    """
    return MAGRPOTrainer(
        agents=[model],
        num_agents=1,
        tokenizer=tokenizer,
        reward_func=reward,
        train_dataset=list(rows),
        args=MAGRPOConfig(
            num_agents=1,
            num_turns=1,
            num_train_epochs=1,
            num_generations=2,
            max_new_tokens=4,
            temperature=1.0,
            **settings,
        ),
        run_directory=folder,
        run_name="run",
        generation_addresses=list(addresses),
        **options,
    )
