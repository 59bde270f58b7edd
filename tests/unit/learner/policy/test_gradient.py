from __future__ import annotations

import pytest
import torch
from tests.support.policies import make_model, minibatch
from torch import Tensor

from antiphon.learner.arithmetic.loss import LossStats
from antiphon.learner.policy.forward import Forward
from antiphon.learner.policy.gradient import add_gradient
from antiphon.learner.policy.micro_batches import Row, Tokens, collate


@pytest.mark.parametrize("frozen", ["nothing", "all but the head"])
def test_a_loss_taken_some_tokens_at_a_time_has_the_gradient_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, frozen: str
) -> None:
    model = make_model(tie=False).eval()
    if frozen != "nothing":
        model.requires_grad_(False).lm_head.requires_grad_(True)
    forward = Forward(model)
    rows = [Row(n.prompt_token_ids, c, 1.0) for n in minibatch(model) for c in n.completions]
    batch = collate([[row] for row in rows], "sampled", torch.device("cpu"))
    seen: list[int] = []

    def loss_of(states: Tensor, tokens: Tokens) -> tuple[Tensor, LossStats]:
        seen.append(len(tokens))
        logprobs = forward.logits(states).log_softmax(-1)
        loss = (
            logprobs.gather(-1, tokens.token_ids[:, None]).squeeze(-1) * tokens.advantages
        ).sum()
        return loss, LossStats(tokens=len(tokens), loss=loss.item())

    def gradients() -> tuple[LossStats, list[Tensor | None]]:
        model.zero_grad()
        stats = add_gradient(forward, batch, loss_of, whole_logits=True)
        return stats, [p.grad for p in model.parameters()]

    whole, wanted = gradients()
    monkeypatch.setattr("antiphon.learner.policy.logprobs._LOGITS", 5 * 32)
    parts, got = gradients()
    assert seen == [12, 5, 5, 2]
    assert (parts.tokens, parts.loss) == (12, pytest.approx(whole.loss, rel=1e-5))
    for one, other in zip(got, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
