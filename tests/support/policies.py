"""A small policy, minibatches for it, and its gradient and steps worked out plainly."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from tests.support.trees import make_sample
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from antiphon.clients.types import TensorDtype
from antiphon.learner.arithmetic.samples import TrainingSample
from antiphon.learner.policy.policy import PolicySettings

VOCABULARY = 32
EOS = 2
SETTINGS = PolicySettings(temperature=0.6, max_new_tokens=8, learning_rate=1e-3)
BF16, F32 = TensorDtype.BFLOAT16, TensorDtype.FLOAT32


def make_model(
    seed: int = 0, *, tie: bool = True, dtype: torch.dtype = torch.float32, dropout: float = 0.0
) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
        tie_word_embeddings=tie,
        attention_dropout=dropout,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).to(dtype)


def row_logprobs(
    model: nn.Module, prompt: Sequence[int], tokens: Sequence[int], kept: int, temperature: float
) -> Tensor:
    """Log-probabilities of one completion, without padding; kept sets by a sort."""
    logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0]
    values = []
    for c, token in enumerate(tokens):
        scaled = logits[len(prompt) + c - 1] / temperature
        best = sorted(range(VOCABULARY), key=lambda v: -scaled[v].item())[:kept]
        if token not in best:
            best[-1] = token
        values.append(scaled[token] - torch.stack([scaled[v] for v in best]).logsumexp(0))
    return torch.stack(values)


def sampled_by(
    model: nn.Module,
    prompt: Sequence[int],
    completions: Sequence[tuple[Sequence[int], float]],
    *,
    kept: int = VOCABULARY,
    shift: float = 0.0,
    temperature: float = 0.6,
    turn: int = 1,
) -> TrainingSample:
    """A sample whose engine log-probabilities are the model's own plus `shift` per token."""
    with torch.no_grad():
        logprobs = [
            [p + shift for p in row_logprobs(model, prompt, t, kept, temperature).tolist()]
            for t, _ in completions
        ]
    sizes = [[kept] * len(tokens) for tokens, _ in completions]
    return make_sample(prompt, completions, logprobs=logprobs, kept_sizes=sizes, turn=turn)


def minibatch(model: nn.Module, **options: float) -> list[TrainingSample]:
    """Two live nodes with prompts and completions of different lengths."""
    first = [([20, 21, EOS], 1.0), ([22, EOS], -0.5), ([EOS], -0.25)]
    second = [([23, 24, 25, 26, EOS], -1.0), ([27], 1.0)]
    return [
        sampled_by(model, [5], first, **options),
        sampled_by(model, [6, 7, 8, 9], second, **options),
    ]


def copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(model: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def rounded(model: nn.Module) -> nn.Module:
    """A copy whose weights are rounded to bf16 and held in float32."""
    copied = copy.deepcopy(model).eval()
    with torch.no_grad():
        for p in copied.parameters():
            p.copy_(p.to(torch.bfloat16))
    return copied.float()


def reference_gradient(
    model: nn.Module, nodes: Sequence[TrainingSample], *, kept: int, weights: str = "sequence"
) -> dict[str, Tensor]:
    """Gradient of -min(rho A, clip(rho) A), one completion and one token at a time."""
    live = [node for node in nodes if not node.dead]
    all_completions = [c for node in live for c in node.completions]
    total = torch.zeros(())
    for node in live:
        for completion in node.completions:
            now = row_logprobs(model, node.prompt_token_ids, completion.token_ids, kept, 0.6)
            for logprob, engine in zip(now, completion.logprobs, strict=True):
                ratio = (logprob - engine).exp()
                one, other = ratio, ratio.clamp(0.8, 1.2)
                token = -torch.min(one * completion.advantage, other * completion.advantage)
                divisor = {
                    "sequence": len(node.completions) * len(live),
                    "token": sum(len(c.token_ids) for c in all_completions),
                    "constant": len(all_completions) * 8,
                }[weights]
                total = total + token / divisor
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(total, parameters), strict=True))


def adamw(master: Tensor, gradients: Sequence[Tensor], *, lr: float, decay: float = 0.01) -> Tensor:
    """AdamW as its paper writes it, betas 0.9 and 0.999."""
    m, v = torch.zeros_like(master), torch.zeros_like(master)
    for t, g in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        update = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        master = master * (1 - lr * decay) - lr * update
    return master


def assert_states_equal(got: object, wanted: object) -> None:
    """Bitwise equality of nested dicts of tensors and numbers, and of nothing else."""
    if isinstance(wanted, dict):
        assert isinstance(got, dict)
        assert got.keys() == wanted.keys()
        for key in wanted:
            assert_states_equal(got[key], wanted[key])
    elif isinstance(wanted, Tensor):
        assert isinstance(got, Tensor)
        assert torch.equal(got, wanted)
    else:
        assert isinstance(wanted, int | float)
        assert got == wanted
