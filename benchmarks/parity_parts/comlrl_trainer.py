"""CoMLRL's trainer with a scripted `generate` and an eye on what it computes. Peer side only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import comlrl.trainers.reinforce.magrpo as magrpo
import torch
from benchmarks.parity_parts import script
from benchmarks.parity_parts.cases import Case
from benchmarks.parity_parts.script import EOS, PAD, WORD_IDS
from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer
from datasets import Dataset
from torch import nn

Answers = Callable[[str, int], Sequence[str]]


class StubModel(nn.Module):
    """Says that all 128 words are as likely, whatever it is asked; keeps its logits.

    The gradient that the loss leaves at a logit of the sampled word is -w (1 - 1/128), where w is
    the weight of that word's log-probability in the loss. So a run shows its advantages.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.config = SimpleNamespace(model_type="stub")
        self.logits: list[torch.Tensor] = []

    def forward(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        logits = torch.zeros(1, input_ids.shape[1], len(WORD_IDS), requires_grad=True)
        self.logits.append(logits)
        return SimpleNamespace(logits=logits)


def script_generate(
    model: nn.Module,
    tokenizer: Any,
    answers: Answers,
    *,
    filler: bool,
    seen: Callable[[str], None],
    record: list[dict[str, Any]] | None = None,
) -> None:
    """Make a model's `generate` give scripted rows, right padded as the real one pads them."""
    pad = WORD_IDS[PAD] if tokenizer.pad_token == PAD else WORD_IDS[EOS]

    def generate(input_ids: torch.Tensor, num_return_sequences: int, **kwargs: Any) -> Any:
        prompt = tokenizer.decode(input_ids[0])
        seen(prompt)
        if record is not None:
            record.append({"prompt_ids": input_ids[0].tolist(), "arguments": sorted(kwargs)})
        rows = [
            [WORD_IDS[word] for word in answers(prompt, sample)]
            for sample in range(num_return_sequences)
        ]
        width = max(map(len, rows)) + int(filler)
        padded = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
        prompts = input_ids[:1].expand(num_return_sequences, -1)
        return SimpleNamespace(sequences=torch.cat([prompts, padded], dim=1))

    model.generate = generate  # type: ignore[assignment]


class Recorder(MAGRPOTrainer):
    """The trainer; it does what it does, and everything is written down."""

    def begin(self) -> None:
        self.now = ""
        self.rewards: dict[str, list[float]] = {}
        self.samples: dict[str, dict[str, dict[str, Any]]] = {}
        self.steps: list[tuple[int, int, int, list[str]]] = []
        self.losses: list[tuple[int, float]] = []
        self.gradients: list[tuple[int, dict[str, torch.Tensor]]] = []
        self.weights: list[dict[str, torch.Tensor]] = []
        self.drains = [0] * self.num_agents
        self.generated: list[dict[str, Any]] = []
        self._computed: list[tuple[dict[str, Any], list[torch.Tensor], float, list[float]]] = []

    def see(self, prompt: str) -> None:
        self.now = script.label(prompt)

    def _generate_completions(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        made: dict[str, Any] = super()._generate_completions(*args, **kwargs)
        self.generated.append(
            {
                "agent": kwargs["agent_idx"],
                "texts": made["completions"][0],
                "tokens": [tokens.tolist() for tokens in made["completion_input_ids"][0]],
                "response_lens": made["response_lens"],
                "reference_kls": made["reference_kls"],
                "node": self.now,
            }
        )
        return made

    def _compute_advantages(self, returns_tensor: torch.Tensor) -> torch.Tensor:
        self._effective = returns_tensor.tolist()
        return super()._compute_advantages(returns_tensor)  # type: ignore[no-any-return]

    def _process_buffer(self, agent_idx: int, buffer: Any) -> Any:
        result = super()._process_buffer(agent_idx, buffer)
        self.drains[agent_idx] += 1
        return result

    def _update_from_samples(self, agent_idx: int, samples: Any) -> None:
        optimizer = self.optimizers[agent_idx]
        step = optimizer.step

        def recorded() -> None:
            self._take(agent_idx)
            step()

        optimizer.step = recorded
        self._turn = int(samples[0].turn_idx) + 1
        self._by_data = {id(sample.completions_data): sample for sample in samples}
        super()._update_from_samples(agent_idx, samples)
        optimizer.step = step

    def _compute_loss_with_gradients(self, agent: Any, completions_data: Any, returns: Any) -> Any:
        stub = agent if isinstance(agent, StubModel) else None
        if stub is not None:
            stub.logits = []
        loss = super()._compute_loss_with_gradients(agent, completions_data, returns)
        logits = [] if stub is None else stub.logits
        computed = (completions_data, logits, float(loss.detach()), self._effective)
        self._computed.append(computed)
        return loss

    def _take(self, agent: int) -> None:
        """What one optimiser step is about to be made from."""
        nodes, batch = [], len(self._computed)
        for data, logits, _, effective in self._computed:
            sample = self._by_data[id(data)]
            prompt = data["prompt_input_ids"][0].tolist()
            node = script.label(self.tokenizers[agent].decode(prompt))
            nodes.append(node)
            rows = [row.tolist() for row in data["completion_input_ids"][0]]
            weights = [
                _weights(one, row, len(prompt)) for one, row in zip(logits, rows, strict=False)
            ]
            self.samples.setdefault(str(agent), {})[node] = {
                "returns": sample.returns,
                "effective_returns": effective,
                "mean_reward": sample.node_mean_reward,
                "mean_return": sample.node_mean_return,
                # The first word's weight is A / (completions * nodes of the minibatch).
                "advantages": [w[0] * len(weights) * batch for w in weights if w],
                "weights": weights,
                "tokens": rows,
            }
        self.steps.append((agent, self.drains[agent], self._turn, nodes))
        self.losses.append((agent, sum(loss for _, _, loss, _ in self._computed) / batch))
        named = dict(self.agents[agent].named_parameters())
        self.weights.append({n: p.detach().clone() for n, p in named.items()})
        gradients = {n: p.grad.clone() for n, p in named.items() if p.grad is not None}
        self.gradients.append((agent, gradients))
        self._computed = []


def _weights(logits: torch.Tensor, row: Sequence[int], prompt: int) -> list[float]:
    """Weight of each column's log-probability in the loss; columns without a gradient are 0."""
    if logits.grad is None:
        return [0.0] * len(row)
    places = range(prompt - 1, prompt - 1 + len(row))
    grad = logits.grad[0]
    return [
        -float(grad[place, token]) / (1 - 1 / len(WORD_IDS)) if place < grad.shape[0] else 0.0
        for place, token in zip(places, row, strict=True)
    ]


def make_trainer(
    case: Case,
    models: Sequence[nn.Module],
    tokenizer: Any,
    *,
    answers: Answers | None = None,
    reward: Callable[..., Any] = script.reward,
    transition: Callable[..., Any] = script.transition,
    formatters: Any = None,
    real_generate: bool = False,
    track: bool = False,
    **changes: Any,
) -> Recorder:
    """The trainer of a case, ready for `train()`; `changes` are further settings."""
    settings: dict[str, Any] = {
        "num_train_epochs": 1,
        "agent_learning_rate": case.learning_rate,
        "logging_steps": case.logging_steps,
        "num_agents": case.num_agents,
        "num_generations": case.num_generations,
        "max_new_tokens": 8,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": None,
        "num_turns": case.num_turns,
        "joint_mode": case.joint_mode,
        "early_termination_threshold": case.threshold,
        "eval_interval": 0,
        "rollout_buffer_size": case.rollout_buffer_size,
        "train_batch_size": case.train_batch_size,
        "advantage_normalization": case.normalize,
        "advantage_mode": case.mode,
        "reference_kl_enabled": case.reference_kl > 0,
        "reference_kl_coef": case.reference_kl,
        **changes,
    }
    known: dict[str, list[float]] = {}

    def recorded(*completions: list[str]) -> list[float]:
        values = reward(*completions)
        known.setdefault(trainer.now, []).extend(map(float, values))
        return values

    trainer = Recorder(
        agents=list(models),
        num_agents=case.num_agents,
        tokenizer=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": task} for task in case.tasks]),
        reward_func=recorded if reward is script.reward else reward,
        reward_processor=script.reward_processor if reward is script.reward else None,
        formatters=formatters or script.formatters(case.num_agents),
        external_transition=transition,
        wandb_config={"project": "parity"} if track else None,
        args=MAGRPOConfig(**settings),
    )
    trainer.begin()
    trainer.rewards = known
    said = answers or (script.even_completion if case.even else script.completion)
    if not real_generate:
        for model in models:
            script_generate(model, tokenizer, said, filler=case.even, seen=trainer.see)
    return trainer


def logged(train: Callable[[], Any]) -> list[tuple[int, dict[str, float]]]:
    """What is told to Weights & Biases during `train()`: joint actions so far and figures."""
    rows: list[tuple[int, dict[str, float]]] = []
    log = magrpo.wandb.log
    magrpo.wandb.log = lambda figures, step=None: rows.append((step, dict(figures)))
    try:
        train()
    finally:
        magrpo.wandb.log = log
    return rows
