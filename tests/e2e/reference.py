"""Multi-turn MAGRPO in one process, from its equations, for tests to compare with.

Everything here is written a second time, in float64 and without batching: one forward pass per
completion, AdamW from its own equations. Nothing of `antiphon.learner` or of the sampling code is
imported. Only joint mode `aligned` and advantage mode `mean` are covered.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch

from antiphon.clients.types import Completion

Path = tuple[int, ...]
Rewards = Callable[[Sequence[str]], float | None]
"""Texts of the agents' completions -> reward, None where there is none."""
NextPrompts = Callable[[Sequence[str], Sequence[str]], Sequence[str] | None]
"""Prompts and completions of the agents -> their next prompts, None where the branch stops."""
Batches = Callable[[], Sequence[Sequence[Sequence[Completion]]]]
"""The completions of the next turn, [N][nodes of that turn in tree order][G]."""


@dataclass(frozen=True)
class Settings:
    """What the reference needs to know of a run."""

    num_turns: int
    num_generations: int
    temperature: float
    top_k: int | None
    top_p: float | None
    discount: float
    threshold: float | None
    learning_rate: float
    buffer_size: int
    importance_ratio: bool = True
    clip: float = 0.2
    weight_decay: float = 0.01
    adam_epsilon: float = 1e-8
    normalize: bool = True


@dataclass
class Node:
    """One turn at one point of a tree; `completions` is [N][G], rewards and children [G]."""

    path: Path
    prompts: tuple[str, ...]
    completions: list[list[Completion]]
    rewards: list[float | None]
    children: dict[int, Node] = field(default_factory=dict)

    @property
    def turn(self) -> int:
        return len(self.path) + 1

    @property
    def mean_reward(self) -> float | None:
        return mean(self.rewards)

    def walk(self) -> Iterator[Node]:
        yield self
        for j in sorted(self.children):
            yield from self.children[j].walk()


@dataclass(frozen=True)
class Group:
    """What one agent trains on at one node: those completions that have a return, lists [n]."""

    path: Path
    turn: int
    completions: list[Completion]
    returns: list[float]
    advantages: list[float]

    @property
    def dead(self) -> bool:
        return len(self.returns) < 2 or max(self.returns) - min(self.returns) <= 1e-6


@dataclass(frozen=True)
class Step:
    """One optimiser step of one agent."""

    agent: int
    turn: int
    paths: tuple[Path, ...]
    loss: float
    grad_norm: float
    ratios: tuple[float, ...]


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of what is there."""
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def grow(
    root_prompts: Sequence[str],
    batches: Batches,
    reward: Rewards,
    next_prompts: NextPrompts,
    settings: Settings,
) -> Node:
    """Rebuilds a tree from what was sampled.

    Args:
        root_prompts: Prompt of each agent at turn 1, [N].
        batches: Called once for every turn that has nodes.
        reward: The reward function.
        next_prompts: The transition.
        settings: Of the run.
    """
    frontier: list[tuple[Path, Sequence[str], Node | None]] = [((), root_prompts, None)]
    root: Node | None = None
    for turn in range(1, settings.num_turns + 1):
        following: list[tuple[Path, Sequence[str], Node | None]] = []
        turn_batches = batches()
        assert all(len(batch) == len(frontier) for batch in turn_batches)
        for position, (path, prompts, parent) in enumerate(frontier):
            completions = [list(batch[position]) for batch in turn_batches]
            joint = [[c.text for c in group] for group in zip(*completions, strict=True)]
            node = Node(path, tuple(prompts), completions, [reward(texts) for texts in joint])
            if parent is None:
                root = node
            else:
                parent.children[path[-1]] = node
            high = node.mean_reward is None or (
                settings.threshold is not None and node.mean_reward > settings.threshold
            )
            if turn < settings.num_turns and not high:
                scored = [j for j, r in enumerate(node.rewards) if r is not None]
                answers = [((*path, j), next_prompts(prompts, joint[j])) for j in scored]
                following += [(path, answer, node) for path, answer in answers if answer]
        frontier = following
        if not frontier:
            break
    assert root is not None
    return root


def returns(node: Node, discount: float) -> list[float | None]:
    """R_j = r_j + discount * mean of the child's returns; r_j where there is no child."""
    result: list[float | None] = []
    for j, r in enumerate(node.rewards):
        if r is None or j not in node.children:
            result.append(r)
            continue
        later = mean(returns(node.children[j], discount))
        result.append(None if later is None else r + discount * later)
    return result


def group(node: Node, agent: int, settings: Settings) -> Group:
    """A = (R - mean R) / population standard deviation of R."""
    pairs = [
        (completion, value)
        for completion, value in zip(
            node.completions[agent], returns(node, settings.discount), strict=True
        )
        if value is not None
    ]
    values = torch.tensor([value for _, value in pairs], dtype=torch.float64)
    advantages = values - values.mean() if pairs else values
    if settings.normalize and pairs:
        advantages = advantages / values.std(unbiased=False).clamp_min(1e-6)
    return Group(
        path=node.path,
        turn=node.turn,
        completions=[completion for completion, _ in pairs],
        returns=[float(value) for value in values],
        advantages=[float(a) for a in advantages],
    )


def kept_size(logits: torch.Tensor, settings: Settings) -> tuple[int, float]:
    """Size of the set sampled from, and how near top_p was to another size.

    Args:
        logits: Of one position, [V], already divided by the temperature.
        settings: Hold top_k and top_p.
    """
    ordered = logits.sort(descending=True).values
    if settings.top_k is not None:
        ordered = ordered[: settings.top_k]
    if settings.top_p is None:
        return len(ordered), 1.0
    cumulative = torch.softmax(ordered, 0).cumsum(0)
    size = int((cumulative < settings.top_p).sum()) + 1
    return min(size, len(ordered)), float((cumulative - settings.top_p).abs().min())


def logprobs(
    model: torch.nn.Module, completion: Completion, settings: Settings
) -> tuple[torch.Tensor, int]:
    """Log-probability of each token under the distribution that was sampled from, [C].

    The second value counts tokens that were no longer among the likeliest and took the last place.
    """
    prompt = list(completion.prompt_token_ids)
    tokens = list(completion.token_ids)
    logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    values, forced = [], 0
    for row, token, size in zip(
        logits / settings.temperature, tokens, completion.kept_sizes, strict=True
    ):
        kept = row.detach().topk(size).indices
        if token not in kept:
            kept[-1], forced = token, forced + 1
        values.append(row[token] - torch.logsumexp(row[kept], 0))
    return torch.stack(values), forced


class AdamW:
    """Decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2), float64."""

    def __init__(self, parameters: list[torch.Tensor], settings: Settings) -> None:
        self.parameters, self.epsilon = parameters, settings.adam_epsilon
        self.rate, self.decay = settings.learning_rate, settings.weight_decay
        self.first = [torch.zeros_like(p) for p in parameters]
        self.second = [torch.zeros_like(p) for p in parameters]
        self.steps = 0

    @torch.no_grad()
    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        self.steps += 1
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
            m.mul_(0.9).add_(0.1 * g)
            v.mul_(0.999).add_(0.001 * g * g)
            m_hat = m / (1 - 0.9**self.steps)
            v_hat = v / (1 - 0.999**self.steps)
            p.sub_(self.rate * self.decay * p).sub_(
                self.rate * m_hat / (v_hat.sqrt() + self.epsilon)
            )


class Agent:
    """One agent: its model in float64, its buffer and its optimiser."""

    def __init__(self, index: int, model: torch.nn.Module, settings: Settings) -> None:
        self.index, self.settings = index, settings
        self.model = copy.deepcopy(model).double().eval()
        self.parameters: list[torch.Tensor] = list(self.model.parameters())
        self.optimizer = AdamW(self.parameters, settings)
        self.buffer: list[Group] = []
        self.steps: list[Step] = []
        self.published = [copy.deepcopy(self.model)]
        self._steps_published = 0

    def publish(self) -> None:
        """After a rollout batch: the next version, where a step was taken since the last."""
        if len(self.steps) > self._steps_published:
            self._steps_published = len(self.steps)
            self.published.append(copy.deepcopy(self.model))

    def at_version(self, version: int) -> torch.nn.Module:
        """The model as published; the first push is version 1."""
        return self.published[version - 1]

    def add(self, node: Node) -> None:
        """Lets a node enter the buffer, which drains when it is full."""
        self.buffer.append(group(node, self.index, self.settings))
        if len(self.buffer) == self.settings.buffer_size:
            self.drain()

    def drain(self) -> None:
        """One optimiser step per turn, turns ascending."""
        nodes, self.buffer = self.buffer, []
        for turn in sorted({node.turn for node in nodes}):
            self.step([node for node in nodes if node.turn == turn])

    def step(self, nodes: Sequence[Group]) -> None:
        """L = mean over live nodes of the mean over completions of the sum over tokens."""
        live = [node for node in nodes if not node.dead]
        if not live:
            return
        ratios: list[float] = []
        loss = torch.zeros((), dtype=torch.float64)
        for node in live:
            for completion, advantage in zip(node.completions, node.advantages, strict=True):
                token_loss, ratio = self._token_losses(completion, advantage)
                ratios += ratio
                loss = loss + token_loss.sum() / len(node.completions) / len(live)
        gradients = torch.autograd.grad(loss, self.parameters)
        norm = float(torch.stack([g.norm() for g in gradients]).norm())
        self.steps.append(
            Step(
                agent=self.index,
                turn=nodes[0].turn,
                paths=tuple(node.path for node in nodes),
                loss=float(loss.detach()),
                grad_norm=norm,
                ratios=tuple(ratios),
            )
        )
        self.optimizer.step(gradients)

    def _token_losses(
        self, completion: Completion, advantage: float
    ) -> tuple[torch.Tensor, list[float]]:
        """-min(rho A, clip(rho, 1 - eps, 1 + eps) A), or -A log pi; [C]."""
        now, _ = logprobs(self.model, completion, self.settings)
        if not self.settings.importance_ratio:
            return -advantage * now, []
        ratio = torch.exp(now - torch.tensor(completion.logprobs, dtype=torch.float64))
        clipped = ratio.clamp(1 - self.settings.clip, 1 + self.settings.clip)
        return -torch.minimum(ratio * advantage, clipped * advantage), ratio.detach().tolist()
