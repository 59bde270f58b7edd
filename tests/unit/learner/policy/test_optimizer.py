"""Steps by hand: at a constant gradient of 1 Adam moves a weight by its learning rate."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from antiphon.clients.types import TensorDtype
from antiphon.learner.config.optimizer import OptimizerSettings
from antiphon.learner.policy.optimizer import MasterOptimizer
from antiphon.learner.policy.schedules import Schedule

BF16, F32 = TensorDtype.BFLOAT16, TensorDtype.FLOAT32


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values))


def take_step(optimizer: MasterOptimizer, **gradients: tuple[nn.Parameter, list[float]]) -> float:
    for weights, gradient in gradients.values():
        weights.grad = torch.tensor(gradient).reshape(weights.shape)
    optimizer.gather()
    norm = optimizer.gradient_norm()
    optimizer.step(norm)
    optimizer.drop_gradients()
    return norm


def test_each_step_has_the_learning_rate_of_its_place_in_the_schedule() -> None:
    weight = parameter(0.0)
    settings = OptimizerSettings(
        learning_rate=0.1,
        weight_decay=0.0,
        schedule=Schedule("linear", warmup_steps=1, total_steps=5),
    )
    optimizer = MasterOptimizer({"w": weight}, settings, wire_dtype=F32)
    rates, moves = [], []
    for _ in range(6):
        before = weight.item()
        rates.append(optimizer.learning_rate)
        take_step(optimizer, w=(weight, [1.0]))
        moves.append(before - weight.item())
    assert rates == pytest.approx([0.05, 0.1, 0.075, 0.05, 0.025, 0.0])
    assert moves == pytest.approx(rates, abs=1e-6)
    assert optimizer.steps == 6


@pytest.mark.parametrize("wire", [BF16, F32])
def test_a_resumed_optimiser_goes_on_in_its_schedule(wire: TensorDtype) -> None:
    settings = OptimizerSettings(learning_rate=0.1, schedule=Schedule("cosine", total_steps=4))
    weights = parameter(1.0), parameter(1.0)
    first, second = (MasterOptimizer({"w": w}, settings, wire_dtype=wire) for w in weights)
    for _ in range(2):
        take_step(first, w=(weights[0], [1.0]))
    second.load_state_dict(first.state_dict())
    assert second.learning_rate == first.learning_rate == pytest.approx(0.05)
    for optimizer, weight in zip((first, second), weights, strict=True):
        take_step(optimizer, w=(weight, [-2.0]))
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(first.masters["w"], second.masters["w"])


@pytest.mark.parametrize("wire", [BF16, F32])
@pytest.mark.parametrize(("most", "scale"), [(1.0, 0.2), (5.0, 1.0), (6.0, 1.0), (None, 1.0)])
def test_the_gradient_is_clipped_by_the_norm_over_all_parameters(
    wire: TensorDtype, most: float | None, scale: float
) -> None:
    """Gradients 3 and 4 have norm 5; Adam's first moment is a tenth of what it was given."""
    a, b = parameter(1.0), parameter(1.0)
    settings = OptimizerSettings(max_grad_norm=most)
    optimizer = MasterOptimizer({"a": a, "b": b}, settings, wire_dtype=wire)
    assert take_step(optimizer, a=(a, [3.0]), b=(b, [4.0])) == pytest.approx(5.0)
    moments = optimizer.state_dict()["moments"]
    assert moments["a"]["exp_avg"].item() == pytest.approx(0.3 * scale)
    assert moments["b"]["exp_avg"].item() == pytest.approx(0.4 * scale)


@pytest.mark.parametrize("everything", [True, False])
def test_norms_and_biases_decay_unless_they_are_left_out(everything: bool) -> None:
    """A gradient of 0 leaves the decay alone: times 1 - 0.1 * 0.5."""
    matrix, norm = nn.Parameter(torch.ones(2, 2)), parameter(1.0, 1.0)
    settings = OptimizerSettings(
        learning_rate=0.1, weight_decay=0.5, decay_norms_and_biases=everything
    )
    optimizer = MasterOptimizer({"m": matrix, "n": norm}, settings, wire_dtype=F32)
    take_step(optimizer, m=(matrix, [0.0] * 4), n=(norm, [0.0] * 2))
    assert matrix.flatten().tolist() == pytest.approx([0.95] * 4)
    assert norm.tolist() == pytest.approx([0.95 if everything else 1.0] * 2)


def test_decay_is_torchs_unless_set() -> None:
    weight = parameter(1.0)
    optimizer = MasterOptimizer({"w": weight}, OptimizerSettings(learning_rate=0.1), wire_dtype=F32)
    take_step(optimizer, w=(weight, [0.0]))
    default = torch.optim.AdamW([torch.zeros(1)]).defaults["weight_decay"]
    assert weight.item() == pytest.approx(1 - 0.1 * default)


def test_betas_and_epsilon_reach_adam() -> None:
    """First step: 1 / (sqrt(1) + 1) of the rate; moments (1 - beta) g and (1 - beta) g^2."""
    weight = parameter(0.0)
    settings = OptimizerSettings(
        learning_rate=0.1, betas=(0.5, 0.75), adam_epsilon=1.0, weight_decay=0.0
    )
    optimizer = MasterOptimizer({"w": weight}, settings, wire_dtype=F32)
    take_step(optimizer, w=(weight, [1.0]))
    moments = optimizer.state_dict()["moments"]["w"]
    assert weight.item() == pytest.approx(-0.05)
    assert moments["exp_avg"].item() == pytest.approx(0.5)
    assert moments["exp_avg_sq"].item() == pytest.approx(0.25)


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    """In bf16 256 + 1 is 256."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimizer = MasterOptimizer({"w": weight}, OptimizerSettings(), wire_dtype=BF16)
    for gradient in (256.0, 1.0):
        weight.grad = torch.tensor([gradient], dtype=torch.bfloat16)
        optimizer.gather()
    assert optimizer.gradient_norm() == 257.0


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (1500, 2000), (3, 1 << 21)])
def test_parameters_of_any_size_step_as_torchs_own_and_are_rounded_whole(
    shape: tuple[int, ...],
) -> None:
    """Large ones are rounded some rows at a time."""
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(shape, generator=generator).bfloat16().float()
    weight, alone = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    never = parameter(1.0)
    settings = OptimizerSettings(learning_rate=1e-3, max_grad_norm=None)
    optimizer = MasterOptimizer({"w": weight, "never": never}, settings, wire_dtype=BF16)
    adamw = torch.optim.AdamW([alone], lr=1e-3, fused=True)
    for _ in range(2):
        gradient = torch.randn(shape, generator=generator)
        weight.grad, alone.grad = gradient.clone(), gradient
        optimizer.gather()
        optimizer.step(optimizer.gradient_norm())
        optimizer.drop_gradients()
        adamw.step()
    state = optimizer.state_dict()
    assert torch.equal(state["masters"]["w"], alone)
    assert torch.equal(weight, alone.bfloat16().float())
    for name, wanted in adamw.state[alone].items():
        assert torch.equal(state["moments"]["w"][name], wanted)
    assert "never" not in state["moments"]
