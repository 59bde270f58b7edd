from __future__ import annotations

from typing import Any

import pytest

from antiphon.clients.types import FieldError
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.policy.step_plan import notes_of


def notes(num_prompts: int | None = 2, **settings: Any) -> list[str]:
    """Two agents; G 4, T 2, buffer 2, two tasks: seven steps an epoch (design's example)."""
    config = MAGRPOConfig(num_generations=4, num_turns=2, num_train_epochs=2, **settings)
    return notes_of(config, 2, num_prompts, config.learning_rate)


def test_a_schedule_says_over_how_many_steps_and_that_they_are_the_most() -> None:
    first, second = notes(
        lr_scheduler_type=["linear", "constant"],
        warmup_steps=[0, 3],
        agent_learning_rate=[1e-4, 1e-5],
    )
    assert first.startswith("agent 0: learning rate 0.0001, linear over 14 optimiser steps (the mo")
    assert second == "agent 1: learning rate 1e-05, 3 steps of warm-up"


def test_a_number_that_was_given_is_not_called_an_estimate() -> None:
    (first, _) = notes(lr_scheduler_type="cosine", lr_total_steps=9, num_prompts=None)
    assert first.endswith("cosine over 9 optimiser steps")


def test_constant_rates_and_frozen_agents_say_nothing() -> None:
    assert notes() == []
    assert len(notes(lr_scheduler_type="linear", trainable=[False, True])) == 1


def test_agents_that_share_a_policy_share_its_steps() -> None:
    """Each node enters twice: one drain per node, of one turn each: 5 nodes, 2 tasks, 2 epochs."""
    (note,) = notes(lr_scheduler_type="linear", shared_policy=True)
    assert "linear over 20 optimiser steps" in note


def test_a_warm_up_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(FieldError, match="warmup_steps: got 14, wanted fewer than the 14"):
        notes(lr_scheduler_type="linear", warmup_steps=14)
