"""What ours does where CoMLRL goes wrong. The names are those of `faults.FAULTS`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks.parity_parts import models, our_run, script
from benchmarks.parity_parts.cases import MODES
from benchmarks.parity_parts.faults import (
    CROSS_REWARDS,
    EQUAL,
    FOUR,
    MISSING,
    SAME_LENGTH,
    TWO_LENGTHS,
    Scenario,
    logprob,
    numbered,
    small_case,
)
from benchmarks.parity_parts.our_services import VOCABULARY
from benchmarks.parity_parts.script import BOS, EOS, WORD_IDS
from datasets import Dataset

from antiphon.clients.types import SamplingParameters, Task
from antiphon.learner.arithmetic.advantages import group_advantages
from antiphon.learner.arithmetic.loss import LossTokens, policy_loss, token_weights
from antiphon.learner.arithmetic.samples import TrainedCompletion, TrainingSample
from antiphon.learner.config.magrpo import MAGRPOConfig, resolve_num_agents
from antiphon.learner.data.tasks import Row, Tasks
from antiphon.learner.policy.logprobs import batch_logprobs
from antiphon.learner.policy.micro_batches import Row as TokenRow
from antiphon.learner.policy.micro_batches import collate
from antiphon.learner.policy.policy import Policy
from antiphon.services.common.errors import UserFunctionError
from antiphon.services.common.models import encode_prompt
from antiphon.services.common.sampling import sample


def _ran(
    answers: Sequence[Sequence[str]],
    rewards: Sequence[float],
    pad: str = script.PAD,
    policy: Policy | None = None,
    **case: Any,
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


def _prompt() -> list[int]:
    return encode_prompt(models.tokenizer(), "t0 a0")


@torch.no_grad()
def _logits(folder: Path, token_ids: Sequence[int]) -> torch.Tensor:
    """Logits that predict each token of a completion, [C, V]."""
    ids = torch.tensor([[*_prompt(), *token_ids]])
    logits = models.load(models.folder(folder, 0))(input_ids=ids).logits[0]
    found: torch.Tensor = logits[len(_prompt()) - 1 : -1]
    return found


SAMPLED = SamplingParameters(temperature=0.6, top_k=50, top_p=0.6, max_new_tokens=8)


def draw(folder: Path) -> tuple[Scenario, dict[str, float]]:
    """A completion as our engine draws it at 0.6, 50, 0.6, and what plain Python says of it."""
    ids: list[int] = []
    for _ in range(4):
        logits = _logits(folder, [*ids, 0])[-1:]
        ids.append(int(sample(logits, SAMPLED, torch.tensor([0.7], dtype=torch.float64)).ids[0]))
    answer = [script.WORDS[i] for i in ids]
    other = ["w2" if answer[0] != "w2" else "w3", EOS]
    rows = _logits(folder, ids).double().tolist()

    def by_hand(temperature: float, top_k: int, top_p: float) -> float:
        return sum(
            logprob(row, token, temperature=temperature, top_k=top_k, top_p=top_p)
            for row, token in zip(rows, ids, strict=True)
        )

    right = {
        "sampled_distribution": by_hand(0.6, 50, 0.6),
        "dropout": by_hand(1.0, len(script.WORDS), 1.0),
    }
    return {"answers": [answer, other]}, right


def _logprob(folder: Path, scenario: Scenario, model: Any, *, parameters: Any = None) -> float:
    """The learner's log-probability of the scenario's first completion."""
    ids = [WORD_IDS[word] for word in scenario["answers"][0]]
    kept, temperature = [VOCABULARY] * len(ids), 1.0
    if parameters is not None:
        uniforms = torch.full((len(ids),), 0.7, dtype=torch.float64)
        kept = sample(_logits(folder, ids), parameters, uniforms).kept_sizes.tolist()
        temperature = parameters.temperature
    zeros = (0.0,) * len(ids)
    completion = TrainedCompletion(tuple(ids), zeros, tuple(kept), return_=1.0, advantage=1.0)
    policy = our_run.policy(0, model, small_case())
    batch = collate([[TokenRow(tuple(_prompt()), completion, 1.0)]], "sampled", torch.device("cpu"))
    found = batch_logprobs(policy.forward, batch, temperature=temperature, support="sampled")
    return found.logprobs.sum().item()


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


def top_k_off() -> float:
    config = our_run.settings_of(small_case())
    logits = torch.zeros(1, VOCABULARY)
    uniforms = torch.zeros(1, dtype=torch.float64)
    return float(sample(logits, config.sampling, uniforms).kept_sizes[0])


def long_prompt() -> str:
    grower = our_run.rollout(small_case(), models.tokenizer())
    task = Task("row-0", {"prompt": " ".join(["w1"] * 99)})
    grown = asyncio.run(grower.grow(1, [Row(0, task)]))
    return "refused" if grown.skipped and not grown.roots else "taken"


def two_bos() -> float:
    ids = encode_prompt(models.tokenizer(add_bos=True), f"{BOS} t0 a0")
    return float(ids.count(WORD_IDS[BOS]))


def users_tokenizer() -> str:
    tokenizer = models.tokenizer(pad=None)
    our_run.run(small_case(), tokenizer=tokenizer)
    return str(tokenizer.pad_token)


def _name_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001 (which one it is, is the answer)
        return type(error).__name__
    return "none"


def later_turns_logged() -> float:
    case = small_case(num_turns=2, num_generations=4, logging_steps=50)
    return float(sum("turn_2/reward_mean" in row for row in our_run.run(case, track=True).rows))


def by_count() -> float:
    def reward(a: list[str], b: list[str], bonus: Any = None) -> list[float]:  # noqa: ARG001
        return [1.0 if bonus else 0.0]

    ran = our_run.run(small_case(num_agents=2), reward=reward)
    return float(_node(ran).completions[0].return_)


def type_error() -> float:
    calls = []

    def reward(a: list[str]) -> list[float]:
        calls.append(a)
        raise TypeError("in the user's own code")

    try:
        our_run.run(small_case(), reward=reward)
    except UserFunctionError:
        return float(len(calls))
    raise AssertionError("the user's error was swallowed")


def changed_history() -> float:
    seen: list[int] = []

    def transition(
        prompt: str,
        prompt_history_per_agent: list[list[str]],
        response_history_per_agent: list[list[str]],
        num_agents: int,
    ) -> list[str]:
        seen.append(len(prompt_history_per_agent[0]))
        prompt_history_per_agent[0].append("changed")
        return script.transition(prompt, response_history_per_agent, num_agents)

    our_run.run(small_case(num_turns=2), transition=transition)
    return float(seen[1])


def run(folder: Path, scenario: Scenario) -> dict[str, float | str]:
    """Every fault's number."""
    pad_node = _node(_ran(*SAME_LENGTH, tasks=("t0 <pad> w9",)))
    two = _node(_ran(*TWO_LENGTHS))
    same_pad = _node(_ran(*TWO_LENGTHS, pad=EOS))
    mode = group_advantages
    found: dict[str, float | str] = {
        "end_token": _weights(_node(_ran(*SAME_LENGTH)))[0][1],
        "after_the_end": sum(_weights(two)[0][2:]),
        "pad_is_end": sum(_weights(same_pad)[0][1:]),
        "kl_of_end": float(len(same_pad.completions[0].token_ids)),
        "pad_in_prompt": float(len(pad_node.completions[0].token_ids)),
        "equal_rewards": equal_rewards(folder),
        "missing_reward": missing_reward(),
        "sampled_distribution": _logprob(
            folder, scenario, models.load(models.folder(folder, 0)), parameters=SAMPLED
        ),
        "dropout": _logprob(folder, scenario, models.model(0, dropout=0.5).train()),
        "bfloat16": bfloat16(folder),
        "discount": our_run.run(small_case(num_turns=2), discount=0.0).told()["samples"]["0"]["t0"][
            "returns"
        ][0],
        "crossed": crossed(),
        "top_k_off": top_k_off(),
        "long_prompt": long_prompt(),
        "two_bos": two_bos(),
        "users_tokenizer": users_tokenizer(),
        "three_agents": _name_of(
            lambda: resolve_num_agents({"agents": 3, "args.num_agents": None})
        ),
        "iterable": _name_of(
            lambda: Tasks(Dataset.from_list([{"prompt": "t0"}]).to_iterable_dataset())
        ),
        "later_turns_logged": later_turns_logged(),
        "by_count": by_count(),
        "type_error": type_error(),
        "changed_history": changed_history(),
    }
    for name in MODES[1:]:
        found[f"normalised_{name}"] = mode(FOUR[1], name, True).values[0] or 0.0
    return found
