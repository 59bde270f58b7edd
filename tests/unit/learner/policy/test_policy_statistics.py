"""What a step says of itself."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.support.policies import (
    SETTINGS,
    VOCABULARY,
    make_model,
    minibatch,
    rounded,
    sampled_by,
)

from antiphon.learner.policy.policy import Policy


def test_statistics_at_unchanged_weights() -> None:
    """L7: ratio 1 where 1 is due."""
    model = rounded(make_model())
    stats = Policy(0, model, SETTINGS).step(minibatch(model, kept=5))
    assert (stats.stepped, stats.live_nodes, stats.dead_nodes, stats.tokens) == (True, 2, 0, 12)
    assert stats.ratio_mean == pytest.approx(1.0, abs=1e-5)
    assert stats.ratio_max == pytest.approx(1.0, abs=1e-4)
    assert stats.logprob_gap_max < 1e-4
    assert stats.logprob_gap_mean <= stats.logprob_gap_max
    # Sums over tokens of -A: node 1 (-3 + 1 + 0.25) / 3, node 2 (5 - 1) / 2; mean of both.
    assert stats.loss == pytest.approx(((-3 + 1 + 0.25) / 3 + 4 / 2) / 2, abs=1e-4)
    assert stats.clip_fraction == 0.0


def test_statistics_tell_how_far_engine_and_learner_are_apart() -> None:
    model = rounded(make_model())
    first, second = minibatch(model, shift=-0.5)
    stats = Policy(0, model, SETTINGS).step([first, second])
    assert stats.ratio_mean == pytest.approx(math.exp(0.5), rel=1e-4)
    assert stats.logprob_gap_mean == pytest.approx(0.5, abs=1e-4)
    assert stats.clip_fraction == pytest.approx(4 / 12)  # the tokens with A > 0: 3 and 1


@pytest.mark.parametrize(
    ("kept", "support"), [(5, "sampled"), (VOCABULARY, "sampled"), (5, "full")]
)
def test_entropy_is_that_of_the_distribution_at_the_completion_positions(
    kept: int, support: str
) -> None:
    """Exact: -sum p log p over the kept tokens (all of them for the full support)."""
    model = rounded(make_model())
    nodes = minibatch(model, kept=kept)
    wanted = []
    for node in nodes:
        for completion in node.completions:
            ids = [*node.prompt_token_ids, *completion.token_ids]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids])).logits[0].double() / 0.6
            for c, token in enumerate(completion.token_ids):
                row = logits[len(node.prompt_token_ids) + c - 1]
                best = row.argsort(descending=True)[
                    : kept if support == "sampled" else None
                ].tolist()
                if token not in best:
                    best[-1] = token
                p = row[best].softmax(0)
                wanted.append(-(p * p.log()).sum().item())
    if support == "full":
        nodes = [
            replace(
                n, completions=tuple(replace(c, full_logprobs=c.logprobs) for c in n.completions)
            )
            for n in nodes
        ]
    stats = Policy(0, model, replace(SETTINGS, logprob_support=support)).step(nodes)
    assert len(wanted) == 12
    assert stats.entropy == pytest.approx(sum(wanted) / 12, abs=1e-5)


def test_forced_tokens_are_counted() -> None:
    model = rounded(make_model())
    with torch.no_grad():
        best = model(input_ids=torch.tensor([[5]])).logits[0, -1].argmax().item()
    other = (best + 1) % VOCABULARY
    nodes = [sampled_by(model, [5], [([best], 1.0), ([other], -1.0)], kept=1)]
    assert Policy(0, model, SETTINGS).step(nodes).forced_tokens == 1
