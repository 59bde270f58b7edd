"""What CoMLRL does where it goes wrong, one number or word each. Peer side only.

The names are those of `faults.FAULTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks.parity_parts import comlrl_user_faults, models, script
from benchmarks.parity_parts.cases import MODES
from benchmarks.parity_parts.comlrl_evaluation import evaluation_discount, evaluation_draws
from benchmarks.parity_parts.comlrl_trainer import (
    Recorder,
    StubModel,
    logged,
    make_trainer,
    script_generate,
)
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
from comlrl.trainers.reinforce import MAGRPOConfig
from datasets import Dataset


def _first(trainer: Recorder) -> dict[str, Any]:
    """Agent 0 at the first node that it trained on."""
    return next(iter(trainer.samples["0"].values()))


def _trained(
    answers: Sequence[Sequence[str]], rewards: Sequence[float], pad: str = script.PAD, **case: Any
) -> Recorder:
    """After one step of one agent on these answers and rewards."""
    trainer = make_trainer(
        small_case(num_generations=len(answers), **case),
        [StubModel()],
        models.tokenizer(pad=pad),
        answers=lambda _, sample: answers[sample],
        reward=numbered(answers, rewards),
    )
    trainer.train()
    return trainer


def end_token() -> float:
    return float(_first(_trained(*SAME_LENGTH))["weights"][0][1])


def after_the_end() -> float:
    return float(sum(_first(_trained(*TWO_LENGTHS))["weights"][0][2:]))


def pad_is_end() -> float:
    return float(sum(_first(_trained(*TWO_LENGTHS, pad=EOS))["weights"][0][1:]))


def kl_of_end(folder: Path) -> float:
    answers, rewards = TWO_LENGTHS
    model = models.load(models.folder(folder, 0))
    trainer = make_trainer(
        small_case(reference_kl=0.1),
        [model],
        models.tokenizer(pad=EOS),
        answers=lambda _, sample: answers[sample],
        reward=numbered(answers, rewards),
    )
    models.move(model)
    trainer.train()
    return float(trainer.generated[0]["reference_kls"][0])


def pad_in_prompt() -> float:
    trainer = _trained(*SAME_LENGTH, tasks=("t0 <pad> w9",))
    return float(len(trainer.generated[0]["tokens"][0]))


def missing_reward() -> float:
    return float(_first(_trained(*MISSING))["weights"][0][0])


def _one_step(model: Any, answers: Any, rewards: Any, **settings: Any) -> Recorder:
    """After one step of a Llama."""
    changes = {k: settings.pop(k) for k in ("temperature", "top_p", "top_k") if k in settings}
    trainer = make_trainer(
        small_case(num_generations=len(answers), even=True, **settings),
        [model],
        models.tokenizer(),
        answers=lambda _, sample: answers[sample],
        reward=numbered(answers, rewards),
        **changes,
    )
    trainer.train()
    return trainer


def equal_rewards(folder: Path) -> float:
    model = models.load(models.folder(folder, 0))
    before = [p.detach().clone() for p in model.parameters()]
    _one_step(model, *EQUAL)
    moved = zip(before, model.parameters(), strict=True)
    return max(float((now.detach() - then).abs().max()) for then, now in moved)


def sampled_distribution(folder: Path, scenario: Scenario) -> float:
    model = models.load(models.folder(folder, 0))
    trainer = _one_step(
        model, scenario["answers"], (1.0, 0.0), mode="raw", temperature=0.6, top_p=0.6, top_k=50
    )
    return -2 * trainer.losses[0][1]


def dropout(scenario: Scenario) -> float:
    model = models.model(0, dropout=0.5)
    torch.manual_seed(0)
    return -2 * _one_step(model, scenario["answers"], (1.0, 0.0), mode="raw").losses[0][1]


def bfloat16(folder: Path) -> float:
    model = models.load(models.folder(folder, 0)).to(torch.bfloat16)
    before = [p.detach().clone() for p in model.parameters()]
    _one_step(model, *SAME_LENGTH, learning_rate=5e-6)
    moved = [
        (now.detach().double() - then.double()).abs().flatten()
        for then, now in zip(before, model.parameters(), strict=True)
        if now.grad is not None
    ]
    return float(torch.cat(moved).median()) / 5e-6


def discount() -> float:
    case = small_case(num_turns=2)
    trainer = make_trainer(case, [StubModel()], models.tokenizer(), discount=0.0)
    trainer.train()
    return float(trainer.samples["0"]["t0"]["returns"][0])


def crossed() -> float:
    case = small_case(num_agents=2, joint_mode="crossed")
    trainer = make_trainer(
        case,
        [StubModel(), StubModel()],
        models.tokenizer(),
        reward=lambda a, b: [CROSS_REWARDS[a[0].split()[0] + b[0].split()[0]]],
    )
    trainer.train()
    return float(trainer.samples["0"]["t0"]["returns"][1])


def normalised(mode: str) -> float:
    return float(_first(_trained(*FOUR, mode=mode, normalize=True))["advantages"][0])


def top_k_off(folder: Path) -> float:
    model = models.load(models.folder(folder, 0))
    trainer = make_trainer(small_case(), [model], models.tokenizer(), real_generate=True)
    generate, kept = model.generate, []

    def scored(**kwargs: Any) -> Any:
        output = generate(**kwargs, output_scores=True)
        kept.append(int(output.scores[0][0].isfinite().sum()))
        return output

    model.generate = scored
    torch.manual_seed(0)
    trainer.train()
    return float(kept[0])


def _prompt_ids(tokenizer: Any, task: str) -> list[int]:
    """What the model is asked for a task."""
    model, record = StubModel(), []  # type: ignore[var-annotated]
    trainer = make_trainer(small_case(tasks=(task,)), [model], tokenizer)
    script_generate(
        model, tokenizer, script.completion, filler=False, seen=trainer.see, record=record
    )
    trainer.train()
    return list(record[0]["prompt_ids"])


def long_prompt() -> float:
    return float(len(_prompt_ids(models.tokenizer(limit=32), " ".join(["w1"] * 99))))


def two_bos() -> float:
    ids = _prompt_ids(models.tokenizer(add_bos=True), f"{BOS} t0")
    return float(ids.count(WORD_IDS[BOS]))


def users_tokenizer() -> str:
    tokenizer = models.tokenizer(pad=None)
    make_trainer(small_case(), [StubModel()], tokenizer)
    return str(tokenizer.pad_token)


def _name_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001 (which one it is, is the answer)
        return type(error).__name__
    return "none"


def three_agents() -> str:
    stubs = [StubModel() for _ in range(3)]
    trainer = Recorder(
        agents=stubs,
        tokenizer=models.tokenizer(),
        train_dataset=Dataset.from_list([{"prompt": "t0"}]),
        reward_func=script.reward,
        args=MAGRPOConfig(num_turns=1, num_train_epochs=1, eval_interval=0),
    )
    trainer.begin()
    for stub in stubs:
        script_generate(stub, trainer.tokenizer, script.completion, filler=False, seen=trainer.see)
    return _name_of(trainer.train)


def iterable() -> str:
    trainer = make_trainer(small_case(), [StubModel()], models.tokenizer())
    trainer.train_dataset = Dataset.from_list([{"prompt": "t0"}]).to_iterable_dataset()
    return _name_of(trainer.train)


def later_turns_logged() -> float:
    case = small_case(num_turns=2, num_generations=4, logging_steps=50)
    trainer = make_trainer(case, [StubModel()], models.tokenizer(), track=True)
    return float(sum("turn_2/reward_mean" in figures for _, figures in logged(trainer.train)))


def run(folder: Path, scenario: Scenario) -> dict[str, float | str]:
    """Every fault's number."""
    found: dict[str, float | str] = {
        **comlrl_user_faults.run(folder),
        "end_token": end_token(),
        "after_the_end": after_the_end(),
        "pad_is_end": pad_is_end(),
        "kl_of_end": kl_of_end(folder),
        "pad_in_prompt": pad_in_prompt(),
        "equal_rewards": equal_rewards(folder),
        "missing_reward": missing_reward(),
        "sampled_distribution": sampled_distribution(folder, scenario),
        "dropout": dropout(scenario),
        "bfloat16": bfloat16(folder),
        "discount": discount(),
        "evaluation_discount": evaluation_discount(),
        "evaluation_draws": evaluation_draws(folder),
        "crossed": crossed(),
        "top_k_off": top_k_off(folder),
        "long_prompt": long_prompt(),
        "two_bos": two_bos(),
        "users_tokenizer": users_tokenizer(),
        "three_agents": three_agents(),
        "iterable": iterable(),
        "later_turns_logged": later_turns_logged(),
    }
    for mode in MODES[1:]:
        found[f"normalised_{mode}"] = normalised(mode)
    return found
