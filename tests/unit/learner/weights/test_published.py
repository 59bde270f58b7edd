"""The published bytes, and the steps to them: exact whatever changed, small where little did."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from antiphon.clients.digest import weights_digest
from antiphon.clients.types import TensorDtype, TensorSpec
from antiphon.learner.weights.published import KEPT_STEPS, Published, Step
from antiphon.learner.weights.wire_weights import OwnWeights
from antiphon.services.common.changes import decode_change, patterns
from antiphon.services.common.tensors import tensor_specs, to_bytes

BF16, F32 = TensorDtype.BFLOAT16, TensorDtype.FLOAT32


def weights(seed: int = 0) -> dict[str, Tensor]:
    """More elements than one block holds, in float32, exact in bf16; a scalar and no elements."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"b.weight": (900, 600), "a.bias": (7,), "c": (), "d": (0, 3)}
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: tensor.to(torch.bfloat16).float() for name, tensor in drawn.items()}


def step_once(tensors: dict[str, Tensor], every: int = 50, offset: int = 0) -> None:
    """Moves some elements by bf16 units, in place."""
    for tensor in tensors.values():
        flat = tensor.reshape(-1)
        flat[offset::every] = flat[offset::every] * 1.01
        flat[:] = flat.to(torch.bfloat16).float()


def wire(tensors: dict[str, Tensor], dtype: TensorDtype) -> list[bytes]:
    return [bytes(to_bytes(tensor, dtype)) for _, tensor in sorted(tensors.items())]


def applied(step: Step, base: list[bytes]) -> list[bytes]:
    result = []
    for spec, change, data in zip(step.specs, step.changes, base, strict=True):
        new = patterns(bytearray(data), spec.dtype)
        positions, values = decode_change(change, new)
        new[positions] = values
        result.append(new.tobytes())
    return result


class Kept:
    """A process that holds the weights, and what it published of them."""

    def __init__(self, dtype: TensorDtype) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.weights = OwnWeights(lambda: self.tensors, dtype)
        self.published = Published(self.weights)
        self.step_from = self.published.step_from

    def update(self, tensors: dict[str, Tensor], version: int) -> None:
        self.tensors = tensors
        self.published.take(self.weights.shapes(), version)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return self.published.specs

    @property
    def digest(self) -> bytes:
        return self.published.digest

    @property
    def nbytes(self) -> int:
        return self.published.nbytes

    def buffers(self) -> list[bytes]:
        return [bytes(self.weights.kept(spec.name)) for spec in self.specs]


@pytest.mark.parametrize("dtype", list(TensorDtype))
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_what_is_held_is_what_is_on_the_wire_and_the_step_leads_to_it(
    dtype: TensorDtype, compute: torch.dtype
) -> None:
    tensors = {name: tensor.to(compute) for name, tensor in weights().items()}
    copy = Kept(dtype)
    copy.update(tensors, 1)
    before, base = wire(tensors, dtype), copy.digest
    assert copy.buffers() == before
    assert copy.specs == tensor_specs(tensors, dtype)
    assert copy.digest == weights_digest(copy.specs)
    assert copy.step_from(base) is None
    step_once(tensors)
    copy.update(tensors, 2)
    after = wire(tensors, dtype)
    assert copy.buffers() == after
    assert copy.specs == tensor_specs(tensors, dtype)
    step = copy.step_from(base)
    assert step is not None
    assert (step.version, step.digest, step.specs) == (2, copy.digest, copy.specs)
    assert applied(step, before) == after
    assert 0 < step.nbytes < copy.nbytes / 10


def test_what_is_held_is_not_the_models_memory() -> None:
    """A push of the published version goes on while the next step is being taken."""
    tensors = weights()
    copy = Kept(F32)
    copy.update(tensors, 1)
    before = wire(tensors, F32)
    step_once(tensors)
    assert copy.buffers() == before


def test_several_threads_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.learner.weights.wire_weights._WORTH_THREADS", 1)
    alone, together = Kept(BF16), Kept(BF16)
    tensors = weights()
    for copy, threads in ((alone, 1), (together, 3)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        copy.update(weights(), 1)
        moved = weights()
        step_once(moved)
        copy.update(moved, 2)
    assert alone.specs == together.specs
    first = weights_digest(tensor_specs(tensors, BF16))
    assert alone.step_from(first) == together.step_from(first) is not None


def test_tensors_of_which_a_sample_has_one_element_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large model one element in many is looked at, of a small tensor only its first."""
    monkeypatch.setattr("antiphon.learner.weights.wire_weights.SAMPLE", 1000)
    tensors, kept = weights(), Kept(BF16)
    kept.update(tensors, 1)
    base, digest = wire(tensors, BF16), kept.published.digest
    step_once(tensors, offset=1)
    kept.update(tensors, 2)
    step = kept.step_from(digest)
    assert step is not None
    assert applied(step, base) == wire(tensors, BF16)


def test_where_nearly_all_changed_no_step_is_kept() -> None:
    copy = Kept(BF16)
    copy.update(weights(0), 1)
    base = copy.digest
    copy.update(weights(1), 2)
    assert copy.step_from(base) is None
    assert copy.specs == tensor_specs(weights(1), BF16)


def test_the_same_weights_again_are_no_step() -> None:
    copy = Kept(BF16)
    copy.update(weights(), 1)
    base = copy.digest
    copy.update(weights(), 2)
    assert copy.digest == base
    assert copy.step_from(base) is None


def test_steps_lead_from_version_to_version_as_far_back_as_is_worth_it() -> None:
    tensors, copy = weights(), Kept(BF16)
    copy.update(tensors, 1)
    digests, states = [copy.digest], [wire(tensors, BF16)]
    for version in range(2, KEPT_STEPS + 4):
        step_once(tensors, every=500, offset=version)
        copy.update(tensors, version)
        digests.append(copy.digest)
        states.append(wire(tensors, BF16))
    known = [digest for digest in digests if copy.step_from(digest) is not None]
    assert known == digests[-KEPT_STEPS - 1 : -1]
    state, digest = states[-KEPT_STEPS - 1], known[0]
    while (step := copy.step_from(digest)) is not None:
        state, digest = applied(step, state), step.digest
    assert (state, digest) == (states[-1], copy.digest)


def test_weights_that_came_back_lead_on_to_the_present_ones() -> None:
    """S3: A, B, A, C: from A the way is straight to C, and from B it ends there too."""
    first, second, third = weights(), weights(), weights()
    step_once(second, every=500, offset=1)
    step_once(third, every=500, offset=2)
    copy, digests = Kept(BF16), []
    for version, tensors in enumerate((first, second, first, third), start=1):
        copy.update(tensors, version)
        digests.append(copy.digest)
    ways = []
    for digest in digests[:2]:
        versions = []
        while len(versions) < 5 and (step := copy.step_from(digest)) is not None:
            versions.append(step.version)
            digest = step.digest
        assert digest == copy.digest
        ways.append(versions)
    assert ways == [[4], [3, 4]]


def test_steps_that_together_are_as_large_as_the_weights_are_forgotten() -> None:
    tensors, copy = {"w": torch.randn(40).to(torch.bfloat16)}, Kept(BF16)
    digests = []
    for version in range(1, 7):
        copy.update(tensors, version)
        digests.append(copy.digest)
        tensors["w"][version] += 1
    steps = [step for digest in digests if (step := copy.step_from(digest)) is not None]
    assert 0 < len(steps) < 5
    assert sum(step.nbytes for step in steps) < copy.nbytes
    assert steps[-1].digest == copy.digest


def test_an_update_that_fails_in_its_middle_is_no_base() -> None:
    copy = Kept(BF16)
    copy.update(weights(), 1)
    base = copy.digest
    broken = weights()
    broken["b.weight"] = broken["b.weight"][:10]  # Fewer elements than before.
    with pytest.raises(ValueError, match="broadcast"):
        copy.update(broken, 2)
    assert copy.digest == b""
    moved = weights()
    step_once(moved)
    copy.update(moved, 2)
    assert copy.step_from(base) is None
    assert copy.buffers() == wire(moved, BF16)
