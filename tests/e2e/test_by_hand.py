"""Process by process, as on a cluster: four services, the learner and a watcher, over addresses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.support import run_folders
from tests.support.models import tiny_folder
from tests.support.processes import Processes, Started
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphon.clients.generation import GenerationClient
from antiphon.clients.types import GenerateRequest, PromptSamples, SamplingParameters, TokenIds

PROMPTS = ["a red cat", "two dog sings"]
TASK = """
def reward(first, second):
    return [0.1 * len(a.split()) + 0.2 * b.split().count("a") for a, b in zip(first, second)]


def feedback(prompt, agent_completions, num_agents):
    return [f"again {prompt} {agent_completions[0]}"] * num_agents
"""
RUN = """
[run]
name = "by-hand"

[magrpo]
num_turns = 2
num_train_epochs = 2
num_generations = 3
max_new_tokens = 6
temperature = 1.0
top_k = "none"
top_p = "none"
agent_learning_rate = 1e-2
early_termination_threshold = "none"
logging_steps = 1

[dataset]
prompts = ["a red cat", "two dog sings"]
"""


def run_file(directory: Path, model: Path, *, addresses: dict[str, str] | None = None) -> Path:
    """The run as TOML: with the addresses of running services, or with what to start here."""
    text = RUN
    for agent in (0, 1):
        text += f'\n[[agents]]\nmodel = "{model}"\n'
        if addresses:
            text += f'addresses = ["{addresses[f"agent_{agent}"]}"]\n'
    for section, function in (("reward", "reward"), ("transition", "feedback")):
        who = (
            f'address = "{addresses[section]}"' if addresses else f'function = "my_task:{function}"'
        )
        text += f"\n[{section}]\n{who}\n"
    file = directory / "run.toml"
    file.write_text(text)
    return file


@dataclass
class HandRun:
    """What was started, and where the run went."""

    model: Path
    folder: Path
    services: dict[str, Started]
    training: Started
    watching: Started
    dry_run: str


@pytest.fixture(scope="module")
def hand_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandRun]:
    """A whole run by commands; its services still serve when the tests look at it."""
    directory = tmp_path_factory.mktemp("by-hand")
    model = tiny_folder(directory / "model", seed=3, two_ends=True)
    (directory / "my_task.py").write_text(TASK)
    with Processes(directory) as processes:
        services = {
            f"agent_{agent}": processes.serve(
                f"agent_{agent}", "generation", "--model", str(model), "--agent", str(agent)
            )
            for agent in (0, 1)
        }
        services["reward"] = processes.serve("reward", "reward", "my_task:reward")
        services["transition"] = processes.serve("transition", "transition", "my_task:feedback")
        addresses = {name: service.address() for name, service in services.items()}
        file = run_file(directory, model, addresses=addresses)
        dry = processes.antiphon("dry-run", "train", str(file), "--dry-run").succeed(timeout=60)
        training = processes.antiphon(
            "training",
            *("train", str(file), "--set", "server.port=0"),
            *("--set", f"server.address_file={directory / 'training.address.json'}"),
        )
        watching = processes.antiphon("watching", "watch", training.address())
        training.succeed(timeout=120)
        watching.succeed(timeout=30)
        folder = run_folders.find(directory)
        yield HandRun(model, folder, services, training, watching, dry)


def test_a_dry_run_shows_the_size_of_the_tree_and_starts_nothing(hand_run: HandRun) -> None:
    assert hand_run.folder.name == "by-hand", "the dry run before it made no folder"
    for number in (4, 12, 24):  # nodes, joint actions and completions per prompt
        assert str(number) in hand_run.dry_run


def test_the_run_folder_holds_config_metrics_rollouts_models_and_a_summary(
    hand_run: HandRun,
) -> None:
    folder = hand_run.folder
    config = json.loads((folder / "config.json").read_text())
    assert config["magrpo"]["num_generations"] == 3
    metrics = run_folders.metrics(folder)
    assert run_folders.total(metrics, "turn_1/joint_actions") == 2 * 2 * 3
    assert run_folders.total(metrics, "turn_2/joint_actions") == 2 * 2 * 9
    assert {"turn_1/reward_mean", "turn_1/expected_return", "turn_2/reward_mean"} <= set(metrics[0])
    for epoch in (1, 2):
        nodes = run_folders.rollouts(folder, epoch)
        assert [node["agents"][0]["prompt"] for node in nodes if node["turn"] == 1] == PROMPTS
        assert len(nodes) == 2 * 4
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["state"] == "finished"
    for agent in (0, 1):
        assert f"agent_{agent}" in (folder / "SUMMARY.md").read_text()


def test_both_trained_agents_load_and_differ_from_the_start_and_from_each_other(
    hand_run: HandRun,
) -> None:
    start = AutoModelForCausalLM.from_pretrained(hand_run.model)
    weights = [start.get_input_embeddings().weight]
    for agent in (0, 1):
        model = AutoModelForCausalLM.from_pretrained(hand_run.folder / f"agent_{agent}")
        weights.append(model.get_input_embeddings().weight.float())
    for a in range(3):
        for b in range(a):
            assert not torch.equal(weights[a], weights[b])


def test_a_watcher_sees_the_run_to_its_end(hand_run: HandRun) -> None:
    log = hand_run.watching.log
    assert "finished" in log
    assert "turn_2/reward_mean" in log or "turn 2" in log


def test_services_that_the_run_did_not_start_stay(hand_run: HandRun) -> None:
    assert all(service.popen.poll() is None for service in hand_run.services.values())


async def test_the_services_sample_greedily_what_the_saved_models_do(hand_run: HandRun) -> None:
    """What the last push brought (bf16 on the wire) is what was saved, token for token."""
    identity = json.loads((hand_run.folder / "run.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(hand_run.folder / "agent_0")
    outputs = []
    for agent in (0, 1):
        model = AutoModelForCausalLM.from_pretrained(
            hand_run.folder / f"agent_{agent}", dtype=torch.float32
        )
        client = GenerationClient(hand_run.services[f"agent_{agent}"].address())
        info = await client.get_model_info(timeout=10)
        assert info.loaded.version > 1
        for prompt in PROMPTS:
            inputs = tokenizer(prompt, return_tensors="pt")
            expected = model.generate(**inputs, do_sample=False, max_new_tokens=8)
            ids = inputs["input_ids"][0].tolist()
            request = GenerateRequest(
                identity["run_id"],
                identity["incarnation"],
                agent,
                info.loaded.version,
                (PromptSamples(TokenIds(tuple(ids)), (0,)),),
                SamplingParameters(0.0, None, None, 8),
            )
            (completion,) = [c async for c in client.generate(request, timeout=30)]
            assert list(completion.token_ids) == expected[0, len(ids) :].tolist()
            outputs.append(completion.token_ids)
        await client.close()
    assert len(set(outputs)) > 1


def test_training_without_addresses_starts_its_services_and_takes_them_down(
    processes: Processes, tiny_model_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "my_task.py").write_text(TASK)
    file = run_file(tmp_path, tiny_model_folder)

    log = processes.antiphon("training", "train", str(file)).succeed(timeout=120)

    processes.assert_none_left()
    folder = tmp_path / "runs" / "by-hand"
    assert str(folder.relative_to(tmp_path)) in log
    assert json.loads((folder / "summary.json").read_text())["state"] == "finished"
    for agent in (0, 1):
        AutoModelForCausalLM.from_pretrained(folder / f"agent_{agent}")
