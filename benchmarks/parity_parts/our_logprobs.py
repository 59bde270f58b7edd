"""Log-probabilities of ours where CoMLRL's are wrong, and the right ones in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks.parity_parts import models, our_run, script
from benchmarks.parity_parts.our_services import VOCABULARY
from benchmarks.parity_parts.scenarios import TWO_LENGTHS, Scenario, k3, logprob, small_case
from benchmarks.parity_parts.script import EOS, WORD_IDS

from antiphon.clients.types import SamplingParameters
from antiphon.learner.arithmetic.samples import TrainedCompletion
from antiphon.learner.policy.logprobs import batch_logprobs
from antiphon.learner.policy.micro_batches import Row, collate
from antiphon.services.common.models import encode_prompt
from antiphon.services.common.sampling import sample

SAMPLED = SamplingParameters(temperature=0.6, top_k=50, top_p=0.6, max_new_tokens=8)


def scenario(folder: Path) -> tuple[Scenario, dict[str, float]]:
    """A completion as our engine draws it at 0.6, 50, 0.6; the right numbers, by fault."""
    model = models.load(models.folder(folder, 0))
    ids: list[int] = []
    for _ in range(4):
        logits = _logits(model, [*ids, 0])[-1:]
        ids.append(int(sample(logits, SAMPLED, torch.tensor([0.7], dtype=torch.float64)).ids[0]))
    answer = [script.WORDS[i] for i in ids]
    other = ["w2" if answer[0] != "w2" else "w3", EOS]
    right = {
        "sampled_distribution": sum(_by_hand(model, ids, 0.6, 50, 0.6)),
        "dropout": sum(_by_hand(model, ids)),
        "kl_of_end": _kl_by_hand(folder),
    }
    return {"answers": [answer, other]}, right


def sampled_distribution(folder: Path, given: Scenario) -> float:
    model = models.load(models.folder(folder, 0))
    ids = _answer(given)
    uniforms = torch.full((len(ids),), 0.7, dtype=torch.float64)
    kept = sample(_logits(model, ids), SAMPLED, uniforms).kept_sizes.tolist()
    return _learners(model, ids, kept, SAMPLED.temperature)


def dropout(given: Scenario) -> float:
    ids = _answer(given)
    return _learners(models.model(0, dropout=0.5).train(), ids, [VOCABULARY] * len(ids), 1.0)


def kl_of_end(folder: Path) -> float:
    """Measured as in a run: by `References`, on a tree that was grown."""
    answers, _ = TWO_LENGTHS
    case = small_case(reference_kl=0.1)
    policy = our_run.policy(0, models.load(models.folder(folder, 0)), case)
    references = our_run.reference(folder, case, [policy])
    models.move(policy.model)
    ran = our_run.run(
        case,
        tokenizer=models.tokenizer(pad=EOS),
        answers=lambda _, g: answers[g],
        policies=[policy],
        references=references,
    )
    of_agent, *_ = ran.roots[0].references
    return of_agent[0].kl


def _kl_by_hand(folder: Path) -> float:
    (words, _), _ = TWO_LENGTHS
    ids = [WORD_IDS[word] for word in words]
    reference = _by_hand(models.load(models.folder(folder, 0)), ids)
    policy = _by_hand(models.move(models.load(models.folder(folder, 0))), ids)
    return sum(map(k3, policy, reference))


def _by_hand(
    model: Any,
    ids: Sequence[int],
    temperature: float = 1.0,
    top_k: int = VOCABULARY,
    top_p: float = 1.0,
) -> list[float]:
    """Log-probability of each token of a completion, in plain Python from the logits."""
    return [
        logprob(row, token, temperature=temperature, top_k=top_k, top_p=top_p)
        for row, token in zip(_logits(model, ids).double().tolist(), ids, strict=True)
    ]


def _answer(given: Scenario) -> list[int]:
    return [WORD_IDS[word] for word in given["answers"][0]]


def _prompt() -> list[int]:
    return encode_prompt(models.tokenizer(), "t0 a0")


@torch.no_grad()
def _logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Logits that predict each token of a completion, [C, V]."""
    logits = model(input_ids=torch.tensor([[*_prompt(), *ids]])).logits[0]
    found: torch.Tensor = logits[len(_prompt()) - 1 : -1]
    return found


def _learners(model: Any, ids: Sequence[int], kept: Sequence[int], temperature: float) -> float:
    """The learner's log-probability of a completion."""
    zeros = (0.0,) * len(ids)
    completion = TrainedCompletion(tuple(ids), zeros, tuple(kept), return_=1.0, advantage=1.0)
    policy = our_run.policy(0, model, small_case())
    batch = collate([[Row(tuple(_prompt()), completion, 1.0)]], "sampled", torch.device("cpu"))
    found = batch_logprobs(policy.forward, batch, temperature=temperature, support="sampled")
    return found.logprobs.sum().item()
