"""What ours does where CoMLRL goes wrong. The names are those of `faults.FAULTS`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import torch
from benchmarks.parity_parts import (
    models,
    our_evaluation,
    our_logprobs,
    our_run,
    our_user_faults,
    our_whole_runs,
    script,
)
from benchmarks.parity_parts.cases import MODES
from benchmarks.parity_parts.faults import REFUSED
from benchmarks.parity_parts.our_services import VOCABULARY
from benchmarks.parity_parts.scenarios import (
    CROSS_REWARDS,
    EQUAL,
    FOUR,
    MISSING,
    SAME_LENGTH,
    TWO_LENGTHS,
    Scenario,
    numbered,
    small_case,
)
from benchmarks.parity_parts.script import BOS, EOS, WORD_IDS

from antiphon.clients.types import Task
from antiphon.learner.arithmetic.loss import LossTokens, policy_loss, token_weights
from antiphon.learner.arithmetic.samples import TrainingSample
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.data.tasks import Row
from antiphon.learner.policy.micro_batches import Row as TokenRow
from antiphon.learner.policy.micro_batches import collate
from antiphon.learner.policy.policy import Policy
from antiphon.services.common.sampling import sample


def _ran(
    answers: Sequence[Sequence[str]],
    rewards: Sequence[float],
    pad: str = script.PAD,
    policy: Policy | None = None,
    **case: object,
) -> our_run.Ran:
    return our_run.run(
        small_case(num_generations=len(answers), **case),
        tokenizer=models.tokenizer(pad=pad),
        answers=lambda _, g: answers[g],
        reward=numbered(answers, rewards),
        policies=[policy],
    )


def _node(ran: our_run.Ran) -> TrainingSample:
    return ran.watched[0].minibatches[0][0]


def _weights(node: TrainingSample) -> list[list[float]]:
    """Weight of each token's log-probability in the loss, by completion, as its gradient says."""
    (weights,) = token_weights([node], "sequence", 8)
    rows = [
        TokenRow(node.prompt_token_ids, one, weight)
        for one, weight in zip(node.completions, weights, strict=True)
    ]
    batch = collate([[row] for row in rows], "sampled", torch.device("cpu"))
    given = batch.tokens
    now = given.engine_logprobs.clone().requires_grad_()
    tokens = LossTokens(now, given.engine_logprobs, given.advantages, given.weights)
    loss, _ = policy_loss(
        tokens, importance_ratio=True, clip_low=0.2, clip_high=0.2, ratio_cap=None
    )
    (found,) = torch.autograd.grad(loss, now)
    lengths = [len(one.token_ids) for one in node.completions]
    return [(-part).tolist() for part in torch.split(found, lengths)]


def end_token() -> float:
    return _weights(_node(_ran(*SAME_LENGTH)))[0][1]


def after_the_end() -> float:
    return sum(_weights(_node(_ran(*TWO_LENGTHS)))[0][2:])


def pad_is_end() -> float:
    return sum(_weights(_node(_ran(*TWO_LENGTHS, pad=EOS)))[0][1:])


def pad_in_prompt() -> float:
    node = _node(_ran(*SAME_LENGTH, tasks=("t0 <pad> w9",)))
    return float(len(node.completions[0].token_ids))


def missing_reward() -> float:
    return _weights(_node(_ran(*MISSING)))[0][0]


def equal_rewards(folder: Path) -> float:
    policy = our_run.policy(0, models.load(models.folder(folder, 0)), small_case())
    before = [p.detach().clone() for p in policy.model.parameters()]
    _ran(*EQUAL, policy=policy)
    moved = zip(before, policy.model.parameters(), strict=True)
    return max(float((now.detach() - then).abs().max()) for then, now in moved)


def bfloat16(folder: Path) -> float:
    case = small_case(learning_rate=5e-6)
    policy = our_run.policy(0, models.load(models.folder(folder, 0)), case, bfloat16=True)
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    _ran(*SAME_LENGTH, policy=policy, learning_rate=5e-6)
    masters = policy.state_dict()["masters"]
    moved = [(masters[name] - then).abs().flatten() for name, then in before.items()]
    return float(torch.cat(moved).double().median()) / 5e-6


def discount() -> float:
    ran = our_run.run(small_case(num_turns=2), discount=0.0)
    return float(ran.told()["samples"]["0"]["t0"]["returns"][0])


def crossed() -> float:
    """The return under `cross`; `crossed` is refused."""
    try:
        MAGRPOConfig(joint_mode="crossed")  # type: ignore[arg-type]
    except ValueError:
        pass
    else:
        raise AssertionError("joint_mode='crossed' was taken")
    ran = our_run.run(
        small_case(num_agents=2, joint_mode="cross"),
        reward=lambda a, b: [CROSS_REWARDS[a[0].split()[0] + b[0].split()[0]]],
    )
    return float(_node(ran).completions[1].return_)


def normalised(mode: str) -> float:
    ran = _ran(*FOUR, mode=mode, normalize=True)
    return _node(ran).completions[0].advantage


def top_k_off() -> float:
    config = our_run.settings_of(small_case())
    logits = torch.zeros(1, VOCABULARY)
    uniforms = torch.zeros(1, dtype=torch.float64)
    return float(sample(logits, config.sampling, uniforms).kept_sizes[0])


def long_prompt() -> str:
    grower = our_run.rollout(small_case(), models.tokenizer())
    task = Task("row-0", {"prompt": " ".join(["w1"] * 99)})
    grown = asyncio.run(grower.grow(1, [Row(0, task)]))
    return REFUSED if grown.skipped and not grown.roots else "taken"


def two_bos() -> float:
    case = small_case(tasks=(f"{BOS} t0",))
    ran = our_run.run(case, tokenizer=models.tokenizer(add_bos=True))
    return float(_node(ran).prompt_token_ids.count(WORD_IDS[BOS]))


def users_tokenizer() -> str:
    tokenizer = models.tokenizer(pad=None)
    our_run.run(small_case(), tokenizer=tokenizer)
    return str(tokenizer.pad_token)


def later_turns_logged() -> float:
    case = small_case(num_turns=2, num_generations=4, logging_steps=50)
    return float(sum("turn_2/reward_mean" in row for row in our_run.run(case, track=True).rows))


def run(folder: Path, scenario: Scenario) -> dict[str, float | str]:
    """Every fault's number."""
    found: dict[str, float | str] = {
        **our_user_faults.run(),
        "end_token": end_token(),
        "after_the_end": after_the_end(),
        "pad_is_end": pad_is_end(),
        "kl_of_end": our_logprobs.kl_of_end(folder),
        "pad_in_prompt": pad_in_prompt(),
        "equal_rewards": equal_rewards(folder),
        "missing_reward": missing_reward(),
        "sampled_distribution": our_logprobs.sampled_distribution(folder, scenario),
        "dropout": our_logprobs.dropout(scenario),
        "bfloat16": bfloat16(folder),
        "discount": discount(),
        "evaluation_discount": our_evaluation.evaluation_discount(),
        "evaluation_draws": our_whole_runs.evaluation_draws(folder),
        "crossed": crossed(),
        "top_k_off": top_k_off(),
        "long_prompt": long_prompt(),
        "two_bos": two_bos(),
        "users_tokenizer": users_tokenizer(),
        "three_agents": our_whole_runs.three_agents(folder),
        "iterable": our_whole_runs.iterable(folder),
        "later_turns_logged": later_turns_logged(),
    }
    for mode in MODES[1:]:
        found[f"normalised_{mode}"] = normalised(mode)
    return found
