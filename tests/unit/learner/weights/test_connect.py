"""What a generation service must offer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from antiphon.clients.types import (
    EngineCapabilities,
    FieldError,
    LoadedWeights,
    ModelInfo,
    PushKind,
)
from antiphon.learner import MAGRPOConfig
from antiphon.learner.weights.connect import Needs, Terms, check_alike, check_fit

NEEDS = Needs(agent=1, vocabulary_size=30, tokenizer_fingerprint=None, full_logprobs=False)
INFO = ModelInfo(
    model="tiny",
    engine="words",
    vocabulary_size=30,
    tokenizer_fingerprint=b"",
    context_length=64,
    end_token_ids=(2,),
    loaded=LoadedWeights(),
    bound_run_id="",
    bound_incarnation=0,
    instance_id="i",
    boot_id="b",
    capabilities=EngineCapabilities(
        push_kinds=frozenset({PushKind.FULL}),
        token_ids=True,
        logprobs=True,
        full_logprobs=False,
        seeds=True,
    ),
)


def test_an_engine_that_takes_text_only_is_refused_for_appended_conversations() -> None:
    """They go on token for token; prompts that stand alone may be sent as text."""
    text_only = replace(INFO, capabilities=replace(INFO.capabilities, token_ids=False))
    check_fit(INFO, replace(NEEDS, appends=True), "here:1")
    check_fit(text_only, NEEDS, "here:1")
    with pytest.raises(
        FieldError, match=r"agents\[1\] at here:1.*'words' without prompts as token"
    ):
        check_fit(text_only, replace(NEEDS, appends=True), "here:1")


def test_an_engine_with_fixed_weights_serves_frozen_agents_only() -> None:
    can = replace(INFO.capabilities, push_kinds=frozenset(), logprobs=False)
    fixed = replace(INFO, capabilities=can)
    check_fit(fixed, replace(NEEDS, trained=False), "here:1")
    check_fit(fixed, replace(NEEDS, trained=False, adapter=True), "here:1")
    with pytest.raises(FieldError, match=r"agents\[1\] at here:1.*without full pushes"):
        check_fit(fixed, NEEDS, "here:1")
    sampling_only = replace(INFO, capabilities=replace(INFO.capabilities, logprobs=False))
    with pytest.raises(FieldError, match="without log-probabilities of what it samples"):
        check_fit(sampling_only, NEEDS, "here:1")


def test_replicas_all_take_pushes_or_all_keep_their_weights() -> None:
    fixed = replace(INFO, capabilities=replace(INFO.capabilities, push_kinds=frozenset()))
    check_alike([INFO, INFO], 1)
    check_alike([fixed, fixed], 1)
    with pytest.raises(FieldError, match=r"agents\[1\].*some take no pushes"):
        check_alike([INFO, fixed], 1)


def test_reference_kl_of_what_is_sampled_ahead_needs_the_engines_log_probabilities() -> None:
    """It is of the policy as it was at sampling, which the learner does not have any more."""
    ahead = replace(NEEDS, return_kl_ahead=True)
    can = replace(INFO.capabilities, full_logprobs=True)
    check_fit(replace(INFO, capabilities=can), ahead, "here:1")
    check_fit(INFO, replace(ahead, trained=False), "here:1")
    with pytest.raises(
        FieldError, match=r"agents\[1\] at here:1.*'words' without.*reference KL.*max_staleness 0"
    ):
        check_fit(INFO, ahead, "here:1")


@pytest.mark.parametrize(
    ("changes", "ahead"),
    [
        ({}, False),
        ({"max_staleness": 1}, False),
        ({"reference_kl_enabled": True}, False),
        ({"reference_kl_enabled": True, "max_staleness": 1}, True),
        ({"reference_kl_enabled": True, "max_staleness": 1, "reference_kl_coef": 0.0}, False),
        ({"reference_kl_enabled": True, "max_staleness": 1, "reference_kl_mode": "loss"}, False),
    ],
)
def test_a_run_needs_them_with_the_reference_kl_in_the_returns_and_staleness(
    changes: dict[str, Any], ahead: bool
) -> None:
    assert MAGRPOConfig(**changes).return_kl_ahead is ahead


def test_a_prompt_must_fit_by_itself_and_with_its_completion() -> None:
    """L12: by the limit that it breaks, with the numbers."""
    terms = Terms(NEEDS, 60, 12, full_logprobs=False, token_ids=False, fixed=True)
    assert (terms.room(6), terms.room(50)) == (18, 60)
    assert terms.misfit(0, 12, 48) == ""
    assert "prompt of 13 tokens" in terms.misfit(0, 13, 1)
    assert "at most 12" in terms.misfit(0, 13, 1)
    assert "60 tokens" in terms.misfit(0, 12, 49)
