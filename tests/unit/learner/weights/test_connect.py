"""What a generation service must offer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from antiphon.clients.types import (
    EngineCapabilities,
    FieldError,
    LoadedWeights,
    ModelInfo,
    PushKind,
)
from antiphon.learner.weights.connect import Needs, check_fit

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


def test_an_engine_that_takes_text_only_is_refused() -> None:
    """Conversations go on token for token, and prompts are templated and encoded here."""
    check_fit(INFO, NEEDS, "here:1")
    text_only = replace(INFO, capabilities=replace(INFO.capabilities, token_ids=False))
    with pytest.raises(
        FieldError, match=r"agents\[1\] at here:1.*'words' without prompts as token"
    ):
        check_fit(text_only, NEEDS, "here:1")
