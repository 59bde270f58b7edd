from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tests.support.trees import make_sample
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from antiphon.clients.types import FieldError, TensorDtype
from antiphon.learner.arithmetic.samples import TrainingSample
from antiphon.learner.policy.policy import Policy, PolicySettings
from antiphon.learner.policy.schedules import Schedule

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


@pytest.mark.parametrize("kept", [VOCABULARY, 5])
@pytest.mark.parametrize("normalization", ["sequence", "token", "constant"])
def test_a_step_equals_the_equations(kept: int, normalization: str) -> None:
    model = make_model()
    reference = copy.deepcopy(model)
    nodes = minibatch(model, kept=kept, shift=0.15)
    gradient = reference_gradient(reference, nodes, kept=kept, weights=normalization)
    settings = replace(SETTINGS, loss_normalization=normalization)
    stats = Policy(0, model, settings, wire_dtype=F32).step(nodes)
    norm = math.sqrt(sum(g.double().pow(2).sum().item() for g in gradient.values()))
    assert stats.grad_norm == pytest.approx(norm, rel=1e-4)
    for name, p in model.named_parameters():
        # Adam's first step is about lr * sign(g), so only tiny gradients may differ in it.
        wanted = adamw(reference.get_parameter(name), [gradient[name]], lr=1e-3)
        clear = gradient[name].abs() > 1e-5
        torch.testing.assert_close(p[clear], wanted[clear], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("normalization", ["sequence", "token", "constant"])
def test_accumulated_minibatches_step_along_the_mean_of_their_gradients(
    normalization: str,
) -> None:
    """Each minibatch is normalised by itself; one without a live node is in no denominator."""
    model = make_model()
    first, second = minibatch(model, shift=0.1)
    dead = [replace(second, dead=True)]
    each = [
        reference_gradient(copy.deepcopy(model), [node], kept=VOCABULARY, weights=normalization)
        for node in (first, second)
    ]
    mean = {name: (each[0][name] + each[1][name]) / 2 for name in each[0]}
    settings = replace(SETTINGS, loss_normalization=normalization)
    policy = Policy(0, model, settings, wire_dtype=F32)
    stats = policy.step([first], dead, [second])
    norm = math.sqrt(sum(g.double().pow(2).sum().item() for g in mean.values()))
    assert stats.grad_norm == pytest.approx(norm, rel=1e-4)
    assert (policy.optimizer_steps, stats.live_nodes, stats.dead_nodes) == (1, 2, 1)
    for name, moments in policy.state_dict()["moments"].items():
        torch.testing.assert_close(moments["exp_avg"], 0.1 * mean[name], atol=1e-6, rtol=1e-4)
    alone = [Policy(0, make_model(), settings, wire_dtype=F32).step([n]) for n in (first, second)]
    assert stats.loss == pytest.approx(sum(one.loss for one in alone) / 2, abs=1e-6)
    assert stats.tokens == sum(one.tokens for one in alone)


def test_a_step_clips_tells_its_rate_and_recomputes_layers_without_a_difference() -> None:
    nodes = minibatch(make_model())
    norm = Policy(0, make_model(), SETTINGS, wire_dtype=F32).step(nodes).grad_norm
    settings = replace(
        SETTINGS, max_grad_norm=norm / 4, schedule=Schedule("linear", warmup_steps=1, total_steps=9)
    )
    models = [make_model(), make_model()]
    policies = [
        Policy(0, models[0], settings, wire_dtype=F32),
        Policy(0, models[1], replace(settings, activation_checkpointing=True), wire_dtype=F32),
    ]
    for step, factor in ((1, 1 / 2), (2, 1.0), (3, 7 / 8)):
        plain, recomputing = (policy.step(nodes) for policy in policies)
        assert recomputing == plain
        assert plain.learning_rate == pytest.approx(1e-3 * factor)
        if step == 1:
            assert plain.grad_norm == pytest.approx(norm)  # that before clipping
            moments = policies[0].state_dict()["moments"].values()
            clipped = math.sqrt(sum((m["exp_avg"] / 0.1).pow(2).sum().item() for m in moments))
            assert clipped == pytest.approx(norm / 4, rel=1e-4)
    assert same(models[1], copies(models[0]))


def test_bf16_compute_holds_the_same_weights_and_a_float32_master() -> None:
    """Gradients agree to bf16's rounding (2^-8); the master moves by float32 steps."""
    models = [make_model(dtype=torch.bfloat16), make_model(dtype=torch.bfloat16)]
    nodes = minibatch(rounded(make_model()))
    settings = replace(SETTINGS, learning_rate=5e-6, weight_decay=0.0, micro_batch_size=2)
    wide = Policy(0, models[0], settings)
    narrow = Policy(0, models[1], replace(settings, compute_dtype="bfloat16"))
    assert {p.dtype for p in models[0].parameters()} == {torch.float32}
    assert {p.dtype for p in models[1].parameters()} == {torch.bfloat16}
    assert models[1].model.rotary_emb.inv_freq.dtype == torch.float32
    start = {name: master.clone() for name, master in narrow.state_dict()["masters"].items()}
    assert all(torch.equal(models[0].get_parameter(n), m) for n, m in start.items())
    one, other = wide.step(nodes), narrow.step(nodes)
    assert other.grad_norm == pytest.approx(one.grad_norm, rel=0.1)
    assert other.logprob_gap_max < 0.1
    state, wanted = narrow.state_dict(), wide.state_dict()
    for name, master in state["masters"].items():
        gradient = state["moments"][name]["exp_avg"] / 0.1
        torch.testing.assert_close(
            gradient, wanted["moments"][name]["exp_avg"] / 0.1, atol=0.05 * one.grad_norm, rtol=0.1
        )
        assert (gradient.dtype, master.dtype) == (torch.float32, torch.float32)
        moved = gradient.abs() > 1e-4
        # The step is lr to within 1 %: far below a bf16 unit in the last place of most weights.
        step = (master - start[name]).abs()[moved]
        torch.testing.assert_close(step, torch.full_like(step, 5e-6), atol=3e-7, rtol=0)
        assert torch.equal(models[1].get_parameter(name), master.to(torch.bfloat16))
    narrow.restore_dtype()
    assert models[1].dtype == torch.bfloat16


def test_a_model_given_in_float32_comes_back_so_from_bf16_compute() -> None:
    model = make_model()
    policy = Policy(0, model, replace(SETTINGS, compute_dtype="bfloat16"))
    policy.step(minibatch(rounded(make_model())))
    sent = {name: tensor.float() for name, tensor in policy.wire_tensors().items()}
    policy.restore_dtype()
    assert model.dtype == torch.float32
    assert all(torch.equal(model.get_parameter(name), tensor) for name, tensor in sent.items())


@pytest.mark.parametrize("wire", [BF16, F32])
def test_a_frozen_policy_takes_no_step_and_keeps_the_weights_that_it_is_sampled_with(
    wire: TensorDtype,
) -> None:
    model = make_model()
    reference = rounded(model) if wire is BF16 else copy.deepcopy(model)
    nodes = minibatch(model)
    policy = Policy(0, model, replace(SETTINGS, trainable=False), wire_dtype=wire)
    stats = policy.step(nodes, [replace(nodes[0], dead=True)])
    assert (stats.stepped, stats.live_nodes, stats.dead_nodes) == (False, 2, 1)
    assert policy.optimizer_steps == 0
    assert same(model, copies(reference))
    state = policy.state_dict()
    assert (state["masters"], state["moments"]) == ({}, {})
    policy.load_state_dict(state)
    assert set(policy.wire_tensors()) == set(Policy(0, reference, SETTINGS).wire_tensors())
    with pytest.raises(FieldError, match="masters"):
        policy.load_state_dict(Policy(0, reference, SETTINGS).state_dict())


def test_two_steps_carry_the_moments_on() -> None:
    model = make_model()
    reference = copy.deepcopy(model)
    nodes = minibatch(model)
    policy = Policy(0, model, SETTINGS, wire_dtype=F32)
    policy.step(nodes)
    between = copy.deepcopy(model)
    policy.step(nodes)
    first = reference_gradient(reference, nodes, kept=VOCABULARY)
    second = reference_gradient(between, nodes, kept=VOCABULARY)
    for name, p in model.named_parameters():
        wanted = adamw(reference.get_parameter(name), [first[name], second[name]], lr=1e-3)
        clear = (first[name].abs() > 1e-4) & (second[name].abs() > 1e-4)
        torch.testing.assert_close(p[clear], wanted[clear], atol=2e-6, rtol=1e-5)
    assert policy.optimizer_steps == 2
    for name, master in policy.state_dict()["masters"].items():
        assert master.data_ptr() == model.get_parameter(name).data_ptr()  # no second copy


def test_the_model_is_the_rounded_master_after_every_step() -> None:
    model = make_model()
    reference = rounded(model)
    nodes = minibatch(reference, shift=0.1)
    policy = Policy(0, model, SETTINGS)
    assert all(torch.equal(p, reference.get_parameter(n)) for n, p in model.named_parameters())
    gradient = reference_gradient(reference, nodes, kept=VOCABULARY)
    policy.step(nodes)
    masters = policy.state_dict()["masters"]
    for name, p in model.named_parameters():
        assert p.dtype == torch.float32
        assert torch.equal(p, masters[name].to(torch.bfloat16).float())
        wanted = adamw(reference.get_parameter(name), [gradient[name]], lr=1e-3)
        clear = gradient[name].abs() > 1e-5
        torch.testing.assert_close(masters[name][clear], wanted[clear], atol=1e-6, rtol=1e-5)
    for name, tensor in policy.wire_tensors().items():
        assert torch.equal(tensor, tensor.to(torch.bfloat16).float()), name


def test_updates_far_below_a_bf16_unit_add_up_in_the_master() -> None:
    """L21: at learning rate 5e-6 almost no bf16 weight moves in a step, yet all masters do."""
    model = make_model()
    policy = Policy(0, model, replace(SETTINGS, learning_rate=5e-6, weight_decay=0.0))
    start = copies(model)
    nodes = minibatch(model)
    name = "model.layers.0.mlp.down_proj.weight"
    moved = []
    for _ in range(40):
        policy.step(nodes)
        moved.append((model.get_parameter(name) != start[name]).float().mean().item())
    master = policy.state_dict()["masters"][name]
    assert moved[0] < 0.1
    assert (master != start[name]).float().mean() > 0.95
    assert moved[-1] > 4 * moved[0]
    assert moved[-1] > 0.1


@pytest.mark.parametrize("wire", [BF16, F32])
@pytest.mark.parametrize("before_it", [0, 1])
def test_dead_nodes_leave_weights_and_optimiser_bitwise_unchanged(
    wire: TensorDtype, before_it: int
) -> None:
    """L5: no step, no decay, also where momentum has built up."""
    model = make_model()
    policy = Policy(0, model, replace(SETTINGS, weight_decay=0.5), wire_dtype=wire)
    nodes = minibatch(model)
    for _ in range(before_it):
        policy.step(nodes)
    before, state = copies(model), copy.deepcopy(policy.state_dict())
    dead = [replace(node, dead=True) for node in nodes]
    stats = policy.step(dead)
    assert (stats.stepped, stats.live_nodes, stats.dead_nodes, stats.loss) == (False, 0, 2, 0.0)
    assert same(model, before)
    assert_states_equal(policy.state_dict(), state)
    assert policy.optimizer_steps == before_it


def test_dead_nodes_are_in_no_denominator() -> None:
    nodes = minibatch(make_model())
    dead = sampled_by(make_model(), [5, 6], [([20, EOS], 0.0), ([21, EOS], 0.0)])
    for normalization in ("sequence", "token", "constant"):
        settings = replace(SETTINGS, loss_normalization=normalization)
        models = [make_model(), make_model()]
        batches = [nodes, [nodes[0], replace(dead, dead=True), nodes[1]]]
        first, second = (
            Policy(0, model, settings).step(batch)
            for model, batch in zip(models, batches, strict=True)
        )
        assert second == replace(first, dead_nodes=1)
        assert same(models[0], copies(models[1]))


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


def with_reference(nodes: Sequence[TrainingSample], model: nn.Module) -> list[TrainingSample]:
    """The nodes with what a reference says of their tokens, full softmax at temperature 1."""
    with torch.no_grad():
        return [
            replace(
                node,
                completions=tuple(
                    replace(
                        c,
                        reference_logprobs=tuple(
                            row_logprobs(
                                model, node.prompt_token_ids, c.token_ids, VOCABULARY, 1.0
                            ).tolist()
                        ),
                    )
                    for c in node.completions
                ),
            )
            for node in nodes
        ]


@pytest.mark.parametrize("normalization", ["sequence", "token", "constant"])
def test_a_reference_kl_in_the_loss_equals_the_equations(normalization: str) -> None:
    """beta * sum_t w_t k3_t with gradient, weights of the loss; dead nodes have no part in it."""
    model, beta = make_model(), 0.5
    nodes = with_reference(minibatch(model, kept=5), make_model(seed=1))
    start = copy.deepcopy(model)
    kl = torch.zeros(())
    tokens = sum(len(c.token_ids) for n in nodes for c in n.completions)
    for node in nodes:
        for completion in node.completions:
            now = row_logprobs(start, node.prompt_token_ids, completion.token_ids, VOCABULARY, 1.0)
            ratio = (torch.tensor(completion.reference_logprobs) - now).exp()
            divisor = {"sequence": len(node.completions) * 2, "token": tokens, "constant": 5 * 8}
            kl = kl + (ratio - ratio.log() - 1).sum() / divisor[normalization]
    names, parameters = zip(*start.named_parameters(), strict=True)
    of_kl = dict(zip(names, torch.autograd.grad(beta * kl, parameters), strict=True))
    of_loss = reference_gradient(start, nodes, kept=5, weights=normalization)
    dead = [replace(nodes[0], dead=True)]
    settings = replace(SETTINGS, loss_normalization=normalization, reference_kl_coef=beta)
    stats = Policy(0, model, settings, wire_dtype=F32).step(nodes + dead)
    assert stats.reference_kl_loss == pytest.approx(beta * kl.item(), rel=1e-4)
    plain = Policy(
        0, copy.deepcopy(start), replace(settings, reference_kl_coef=0.0), wire_dtype=F32
    ).step(nodes)
    assert stats.loss == pytest.approx(plain.loss + beta * kl.item(), rel=1e-4)
    norm = math.sqrt(sum((of_kl[n] + of_loss[n]).double().pow(2).sum().item() for n in names))
    assert stats.grad_norm == pytest.approx(norm, rel=1e-4)
    assert abs(plain.grad_norm - norm) > 1e-2 * norm


def test_a_reference_kl_in_the_loss_needs_what_the_reference_said() -> None:
    model = make_model()
    policy = Policy(0, model, replace(SETTINGS, reference_kl_coef=0.1))
    with pytest.raises(FieldError, match=r"reference_logprobs: got none"):
        policy.step(minibatch(model))


def test_forced_tokens_are_counted() -> None:
    model = rounded(make_model())
    with torch.no_grad():
        best = model(input_ids=torch.tensor([[5]])).logits[0, -1].argmax().item()
    other = (best + 1) % VOCABULARY
    nodes = [sampled_by(model, [5], [([best], 1.0), ([other], -1.0)], kept=1)]
    assert Policy(0, model, SETTINGS).step(nodes).forced_tokens == 1


def test_micro_batches_change_the_step_by_rounding_only() -> None:
    def step(**limits: int) -> tuple[float, float, dict[str, Tensor]]:
        model = make_model()
        nodes = minibatch(model, kept=5, shift=0.1)
        policy = Policy(0, model, replace(SETTINGS, learning_rate=0.1, **limits), wire_dtype=F32)
        stats = policy.step(nodes)
        moments = policy.state_dict()["moments"]
        return stats.loss, stats.grad_norm, {n: m["exp_avg"] for n, m in moments.items()}

    whole = step(micro_batch_tokens=10_000)
    for limits in ({"micro_batch_tokens": 1}, {"micro_batch_tokens": 14}, {"micro_batch_size": 2}):
        part = step(**limits)
        assert part[:2] == pytest.approx(whole[:2], rel=1e-4)
        for name, moment in part[2].items():
            torch.testing.assert_close(moment, whole[2][name], atol=1e-6, rtol=1e-4)


def test_a_step_recurs_bit_for_bit() -> None:
    models = [make_model(), make_model()]
    for model in models:
        nodes = minibatch(make_model(), kept=5)
        policy = Policy(0, model, SETTINGS, wire_dtype=F32)
        policy.step(nodes)
        policy.step(nodes)
    assert same(models[0], copies(models[1]))


def test_the_gradient_at_ratio_one_is_that_without_a_ratio() -> None:
    norms = []
    for ratio in (True, False):
        model = make_model()
        settings = replace(SETTINGS, importance_ratio=ratio)
        norms.append(Policy(0, model, settings, wire_dtype=F32).step(minibatch(model)).grad_norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_a_stale_ratio_is_truncated_where_staleness_is_allowed() -> None:
    norms = []
    for staleness in (0, 1):
        model = make_model()
        # Ratio e, all advantages negative: nothing is clipped, and 2 / e of the gradient stays.
        node = sampled_by(model, [5], [([20, EOS], -1.0), ([21, EOS], -2.0)], shift=-1.0)
        settings = replace(SETTINGS, max_staleness=staleness)
        norms.append(Policy(0, model, settings, wire_dtype=F32).step([node]).grad_norm)
    assert norms[1] / norms[0] == pytest.approx(2 / math.e, rel=1e-4)


@pytest.mark.parametrize("wire", [BF16, F32])
def test_tied_weights_stay_tied_and_are_optimised_once(wire: TensorDtype) -> None:
    model = make_model(tie=True)
    policy = Policy(0, model, SETTINGS, wire_dtype=wire)
    policy.step(minibatch(model))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert "lm_head.weight" not in policy.state_dict()["masters"]
    assert "lm_head.weight" not in policy.wire_tensors()
    policy.restore_dtype()
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_frozen_parameters_stay_untouched_and_on_the_wire() -> None:
    model = make_model(tie=False)
    frozen = model.model.embed_tokens.weight
    frozen.requires_grad_(False)
    before = rounded(model).model.embed_tokens.weight
    policy = Policy(0, model, SETTINGS)
    assert policy.step(minibatch(model)).stepped
    assert torch.equal(frozen, before)
    assert frozen.grad is None
    assert "model.embed_tokens.weight" in policy.wire_tensors()
    policy.restore_dtype()
    assert not frozen.requires_grad
    assert model.lm_head.weight.requires_grad


def test_a_model_without_anything_to_train_is_refused() -> None:
    with pytest.raises(FieldError, match=r"agents\[3\].*requires_grad"):
        Policy(3, make_model().requires_grad_(False), SETTINGS)


def test_a_bf16_model_computes_in_float32_and_is_handed_back_as_it_came() -> None:
    model = make_model(dtype=torch.bfloat16)
    parameters = dict(model.named_parameters())
    policy = Policy(0, model, SETTINGS)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    policy.step(minibatch(model))
    published = {name: t.clone() for name, t in policy.wire_tensors().items()}
    policy.restore_dtype()
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    for name, p in model.named_parameters():
        assert p is parameters[name]
        assert p.grad is None
        assert torch.equal(p.float(), published[name])


def test_a_bf16_model_trained_at_float32_keeps_what_was_sampled_from() -> None:
    model = make_model(dtype=torch.bfloat16)
    policy = Policy(0, model, SETTINGS, wire_dtype=F32)
    policy.step(minibatch(model))
    trained = copies(model)
    policy.restore_dtype()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert same(model, trained)


def test_rotary_frequencies_are_those_of_an_engine_that_builds_its_own() -> None:
    whole = make_model(dtype=torch.float32)
    model = make_model(dtype=torch.bfloat16)
    frequencies = whole.model.rotary_emb.inv_freq
    assert not torch.equal(model.model.rotary_emb.inv_freq.float(), frequencies)
    policy = Policy(0, model, SETTINGS)
    assert torch.equal(model.model.rotary_emb.inv_freq, frequencies)
    policy.restore_dtype()
    assert model.dtype == torch.bfloat16


def test_training_runs_without_dropout_and_gives_the_mode_back() -> None:
    model = make_model(dropout=0.5)
    model.train()
    model.model.layers[1].eval()
    quiet = make_model()
    nodes = minibatch(quiet.eval())
    policy = Policy(0, model, SETTINGS)
    assert policy.step(nodes) == Policy(0, quiet, SETTINGS).step(nodes)
    assert same(model, copies(quiet))
    policy.restore_dtype()
    assert model.training
    assert model.model.layers[0].self_attn.training
    assert not model.model.layers[1].self_attn.training


def test_gradients_that_the_caller_left_are_in_no_step() -> None:
    models = [make_model(), make_model()]
    for p in models[1].parameters():
        p.grad = torch.full_like(p, 100.0)
    for model in models:
        Policy(0, model, SETTINGS, wire_dtype=F32).step(minibatch(make_model()))
        assert all(p.grad is None for p in model.parameters())
    assert same(models[0], copies(models[1]))


def test_a_step_needs_no_grad_mode_of_the_caller() -> None:
    model = make_model()
    before = copies(model)
    with torch.no_grad():
        assert Policy(0, model, SETTINGS, wire_dtype=F32).step(minibatch(model)).stepped
    assert not same(model, before)


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    model = make_model()
    policy = Policy(1, model, SETTINGS, wire_dtype=F32)
    nodes = minibatch(model)
    policy.step(nodes)
    before, state = copies(model), copy.deepcopy(policy.state_dict())
    endless = make_sample([5], [([20, EOS], -1.0), ([21, EOS], 1.0)], logprobs=[[-1e5] * 2] * 2)
    with pytest.raises(FloatingPointError, match="agent 1, optimiser step 2"):
        policy.step([endless])
    assert same(model, before)
    assert_states_equal(policy.state_dict(), state)
    assert all(p.grad is None for p in model.parameters())


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


@pytest.mark.parametrize("wire", [BF16, F32])
def test_a_loaded_state_goes_on_bit_for_bit(wire: TensorDtype) -> None:
    first, second = make_model(), make_model()
    nodes = minibatch(make_model(), kept=5)
    policy = Policy(0, first, SETTINGS, wire_dtype=wire)
    policy.step(nodes)
    state = copy.deepcopy(policy.state_dict())
    policy.step(nodes)
    resumed = Policy(0, second, SETTINGS, wire_dtype=wire)
    resumed.load_state_dict(state)
    assert resumed.optimizer_steps == 1
    assert resumed.step(nodes).stepped
    assert same(second, copies(first))
    assert_states_equal(resumed.state_dict(), policy.state_dict())


def test_a_state_of_another_model_is_refused_before_anything_changes() -> None:
    model, other = make_model(tie=True), make_model(tie=False)
    state = Policy(0, other, SETTINGS).state_dict()
    policy = Policy(0, model, SETTINGS)
    before = copies(model)
    with pytest.raises(FieldError, match=r"lm_head\.weight"):
        policy.load_state_dict(state)
    assert same(model, before)


def test_a_state_before_the_first_step_loads() -> None:
    model = make_model()
    policy = Policy(0, model, SETTINGS)
    state = copy.deepcopy(policy.state_dict())
    policy.step(minibatch(model))
    policy.load_state_dict(state)
    assert policy.optimizer_steps == 0
    assert_states_equal(policy.state_dict(), state)
    assert same(model, copies(rounded(make_model())))


def test_steps_raise_the_probability_of_what_was_better() -> None:
    model = make_model()
    policy = Policy(0, model, SETTINGS, wire_dtype=F32)
    good, bad = [20, EOS], [21, EOS]

    def total(tokens: list[int]) -> float:
        with torch.no_grad():
            return row_logprobs(model, [5], tokens, VOCABULARY, 0.6).sum().item()

    before = total(good), total(bad)
    for _ in range(5):
        policy.step([sampled_by(model, [5], [(good, 1.0), (bad, -1.0)])])
    assert total(good) > before[0] + 0.1
    assert total(bad) < before[1] - 0.1
