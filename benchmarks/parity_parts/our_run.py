"""Ours on a case: the real rollout, returns, advantages, buffers, policies and record.

Only what samples, scores and asks services is scripted.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks.parity_parts import models, script
from benchmarks.parity_parts.cases import Case
from benchmarks.parity_parts.our_services import (
    TOKENS,
    Answers,
    Rewards,
    ScriptedEngine,
    Transitions,
    on_main_thread,
)

from antiphon.clients.types import (
    RunState,
    Task,
    TensorDtype,
)
from antiphon.learner.arithmetic.buffer import RolloutBuffer
from antiphon.learner.arithmetic.loss import LossTokens, policy_loss, token_weights
from antiphon.learner.arithmetic.samples import TrainingSample, training_samples
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.data.formatters import Prompts
from antiphon.learner.data.tasks import Row
from antiphon.learner.policy.forward import Forward
from antiphon.learner.policy.logprobs import batch_logprobs
from antiphon.learner.policy.micro_batches import Row as TokenRow
from antiphon.learner.policy.micro_batches import collate
from antiphon.learner.policy.policy import Policy, PolicySettings, StepStats
from antiphon.learner.policy.reference import Reference, References
from antiphon.learner.policy.updates import AgentUpdate, Updates
from antiphon.learner.record.record import RunRecord
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.record.stages import StageClock
from antiphon.learner.rollout.prompt_encoding import prompt_encoders
from antiphon.learner.rollout.prompts import TokenizedPrompts
from antiphon.learner.rollout.rollout import Rollout, RolloutShape
from antiphon.learner.rollout.scoring import RewardScorer, ServiceTransitions
from antiphon.learner.rollout.tree import Node


@dataclass
class Watched:
    """A policy, or none; keeps the minibatches that it was given, and what came of them."""

    policy: Policy | None = None
    minibatches: list[list[TrainingSample]] = field(default_factory=list)
    stats: list[StepStats] = field(default_factory=list)
    gradients: list[dict[str, torch.Tensor]] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)

    @property
    def optimizer_steps(self) -> int:
        return len(self.stats)

    def step(self, *minibatches: Sequence[TrainingSample]) -> StepStats:
        (minibatch,) = minibatches  # no gradient accumulation here
        self.minibatches.append(list(minibatch))
        live = sum(not sample.dead for sample in minibatch)
        if self.policy is None:
            return StepStats(stepped=False, live_nodes=live, dead_nodes=len(minibatch) - live)
        if live:
            ratio = not self.gradients  # 1 at the first step, where the gradients are the same
            size, found = gradient(self.policy.model, minibatch, ratio=ratio)
            self.sizes.append(size)
            self.gradients.append(found)
        self.stats.append(self.policy.step(minibatch))
        return self.stats[-1]


def gradient(
    model: Any, minibatch: Sequence[TrainingSample], *, ratio: bool, normalization: str = "sequence"
) -> tuple[float, dict[str, torch.Tensor]]:
    """Gradient of a minibatch, with the importance ratio or of -A log pi.

    Before it comes sum |w A log pi|, what the terms of the loss add up to without their signs.
    """
    nodes = [sample for sample in minibatch if not sample.dead]
    weights = token_weights(nodes, normalization, 8)
    rows = [
        TokenRow(node.prompt_token_ids, one, weight)
        for node, of_node in zip(nodes, weights, strict=True)
        for one, weight in zip(node.completions, of_node, strict=True)
    ]
    batch = collate([[row] for row in rows], "sampled", torch.device("cpu"))
    now = batch_logprobs(Forward(model), batch, temperature=1.0, support="sampled").logprobs
    given = batch.tokens
    tokens = LossTokens(now, given.engine_logprobs, given.advantages, given.weights)
    loss, _ = policy_loss(
        tokens, importance_ratio=ratio, clip_low=0.2, clip_high=0.2, ratio_cap=None
    )
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()))
    terms = given.weights * given.advantages * now.detach()
    return float(terms.abs().sum()), dict(zip(named, found, strict=True))


def settings_of(case: Case, discount: float = 1.0) -> MAGRPOConfig:
    """The configuration of a case."""
    return MAGRPOConfig(
        num_train_epochs=1,
        agent_learning_rate=case.learning_rate,
        logging_steps=case.logging_steps,
        num_agents=case.num_agents,
        num_generations=case.num_generations,
        max_new_tokens=8,
        temperature=1.0,
        top_p=None,
        top_k=None,
        num_turns=case.num_turns,
        discount=discount,
        joint_mode=case.joint_mode,  # type: ignore[arg-type]
        early_termination_threshold=case.threshold,
        eval_interval=0,
        rollout_buffer_size=case.rollout_buffer_size,
        train_batch_size=case.train_batch_size,
        advantage_normalization=case.normalize,
        advantage_mode=case.mode,  # type: ignore[arg-type]
        reference_kl_enabled=case.reference_kl > 0,
        reference_kl_coef=case.reference_kl,
        wire_dtype="float32",
        importance_ratio=False,
    )


def policy(agent: int, model: Any, case: Case, *, bfloat16: bool = False) -> Policy:
    """A policy as the loop makes it, its loss -A log pi."""
    settings = PolicySettings(
        learning_rate=case.learning_rate,
        temperature=1.0,
        max_new_tokens=8,
        importance_ratio=False,
    )
    wire = TensorDtype.BFLOAT16 if bfloat16 else TensorDtype.FLOAT32
    return Policy(agent, model, settings, wire_dtype=wire)


def rollout(
    case: Case,
    tokenizer: Any,
    *,
    answers: Answers | None = None,
    reward: Callable[..., Any] = script.reward,
    transition: Callable[..., Any] = script.our_transition,
    policies: Sequence[Policy | None] = (),
    reward_batch_size: int = 1,
    shape: RolloutShape | None = None,
) -> Rollout:
    """The rollout of a case; `shape` is that of its evaluations."""
    config = settings_of(case)
    said = answers or (script.even_completion if case.even else script.completion)
    engine_models = [None if one is None else one.model for one in policies]
    engine_models = engine_models or [None] * case.num_agents
    return Rollout(
        shape
        or RolloutShape(
            num_agents=case.num_agents,
            num_generations=case.num_generations,
            num_turns=case.num_turns,
            joint_mode=config.joint_mode,
            early_termination_threshold=config.early_termination_threshold,
            max_new_tokens=config.max_new_tokens,
        ),
        generators=[ScriptedEngine(tokenizer, said, model) for model in engine_models],
        scorer=RewardScorer(
            Rewards(reward, case.num_agents, reward_batch_size),
            run_id="parity",
            timeout=10.0,
            failures_are_missing=False,
            drop_missing=True,
            one_at_a_time=False,
            processor=script.reward_processor if reward is script.reward else None,
            on_main_thread=on_main_thread,
        ),
        transitioner=ServiceTransitions(
            Transitions(transition, case.num_agents),
            run_id="parity",
            num_agents=case.num_agents,
            timeout=10.0,
        ),
        prompts=TokenizedPrompts(
            Prompts(script.formatters(case.num_agents), case.num_agents),
            prompt_encoders(config, [tokenizer] * case.num_agents),
            on_main_thread,
        ),
        seed_of=lambda **_: 0,
        clock=StageClock(),
    )


@dataclass
class Ran:
    """What a case came to, in the form in which CoMLRL's side writes it."""

    roots: list[Node]
    watched: list[Watched]
    rows: list[dict[str, float]]

    @property
    def labels(self) -> dict[tuple[int, tuple[int, ...]], str]:
        return {
            (root.row, node.path): script.label(str(node.prompts[0].content))
            for root in self.roots
            for node in root.walk()
        }

    def told(self) -> dict[str, Any]:
        labels = self.labels
        samples: dict[str, dict[str, Any]] = {}
        steps: list[tuple[int, int, list[str]]] = []
        for agent, watched in enumerate(self.watched):
            for minibatch in watched.minibatches:
                names = [labels[sample.row, sample.path] for sample in minibatch]
                steps.append((agent, minibatch[0].turn, names))
                for name, sample in zip(names, minibatch, strict=True):
                    samples.setdefault(str(agent), {})[name] = {
                        "returns": [one.return_ for one in sample.completions],
                        "advantages": [one.advantage for one in sample.completions],
                        "mean_reward": sample.mean_reward,
                        "mean_return": sample.mean_return,
                        "dead": sample.dead,
                    }
        return {
            "joint_actions": sum(len(n.branches) for root in self.roots for n in root.walk()),
            "rewards": {
                labels[root.row, node.path]: [
                    branch.score.value for branch in node.branches if branch.score is not None
                ]
                for root in self.roots
                for node in root.walk()
            },
            "samples": samples,
            "steps": steps,
        }


class _Record:
    """The record of a run: its rows of metrics."""

    def __init__(self, folder: RunFolder, case: Case, config: MAGRPOConfig) -> None:
        self._folder = folder
        self._record = RunRecord(
            folder, config, num_agents=case.num_agents, models=["m"] * case.num_agents
        )

    def told(self, trees: Sequence[Node], updated: Sequence[AgentUpdate]) -> None:
        self._record.rolled_out(1, trees)
        self._record.updated(updated)

    def rows(self) -> list[dict[str, float]]:
        self._record.batch_done({})
        self._record.finish(RunState.FINISHED)
        return [json.loads(line) for line in self._folder.metrics_file.read_text().splitlines()]


@contextmanager
def _record(case: Case, config: MAGRPOConfig) -> Iterator[_Record]:
    with tempfile.TemporaryDirectory() as directory:
        yield _Record(RunFolder.create(Path(directory), "parity"), case, config)


_OF_ROLLOUT = ("answers", "reward", "reward_batch_size", "transition")


async def _run(case: Case, discount: float, given: Mapping[str, Any]) -> Ran:
    config = settings_of(case, discount)
    policies: Sequence[Policy | None] = given.get("policies") or [None] * case.num_agents
    references: References | None = given.get("references")
    grown_before: Sequence[Node] | None = given.get("roots")
    grower = rollout(
        case,
        given.get("tokenizer") or models.tokenizer(),
        policies=policies,
        **{k: given[k] for k in _OF_ROLLOUT if k in given},
    )
    watched = [Watched(one) for one in policies]
    buffers = [
        RolloutBuffer(agent, case.rollout_buffer_size, case.train_batch_size, seed=0)
        for agent in range(case.num_agents)
    ]
    updates = Updates(buffers, watched, at_once=1, threads=1)
    roots: list[Node] = []
    with _record(case, config) if given.get("track") else nullcontext() as record:
        for number, task in enumerate(case.tasks):
            if grown_before is None:
                row = Row(number, Task(f"row-{number}", {"prompt": task}))
                trees = (await grower.grow(1, [row])).roots
            else:
                trees = [root for root in grown_before if root.row == number]
            if references is not None:
                await references.measure(trees, updates.each)
            per_root = [
                training_samples(
                    root,
                    num_agents=case.num_agents,
                    discount=config.discount,
                    mode=config.advantage_mode,
                    normalize=config.advantage_normalization,
                    reference_kl_coef=config.return_kl_coef,
                )
                for root in trees
            ]
            samples = [[s for one in per_root for s in one[a]] for a in range(case.num_agents)]
            last = number == len(case.tasks) - 1
            updated = await updates.run(samples, end_of_epoch=last)
            if record is not None:
                record.told(trees, updated)
            roots += trees
        updates.close()
        rows = [] if record is None else record.rows()
    return Ran(roots, watched, rows)


def run(case: Case, *, discount: float = 1.0, **given: Any) -> Ran:
    """Run a case.

    `given`: tokenizer, answers, reward, reward_batch_size, transition, policies, references;
    `track` writes the metrics; `roots` are trees that the same case of another mode grew.
    """
    return asyncio.run(_run(case, discount, given))


def reference(folder: Path, case: Case, policies: Sequence[Policy]) -> References:
    """The frozen references of a case, before the policies moved."""
    held = [
        Reference(agent, models.load(models.folder(folder, agent)), None, TensorDtype.FLOAT32)
        for agent in range(case.num_agents)
    ]
    return References(policies, held, [(a,) for a in range(case.num_agents)], tokens=TOKENS)
