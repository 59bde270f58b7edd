"""The dry run: looks at everything that a run needs, against real servers."""

from __future__ import annotations

import dataclasses
import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from rich.console import Console
from tests.support.models import tiny_folder

from antiphon.clients import wire
from antiphon.clients.types import (
    EngineCapabilities,
    LoadedWeights,
    ModelInfo,
    PushKind,
    RewardInfo,
)
from antiphon.learner.config.run_file import RunConfig
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.run.dry_run import DryRun, Finding, Inspection
from antiphon.learner.run.dry_run_view import show_dry_run
from antiphon.services.common.models import load_tokenizer, tokenizer_fingerprint
from antiphon.v1 import generation_pb2_grpc, reward_pb2_grpc

CONTEXT = 32


class Generation(generation_pb2_grpc.GenerationServiceServicer):
    def __init__(self, info: ModelInfo) -> None:
        self.info = info

    async def GetModelInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return wire.model_info_to_proto(self.info)


class Reward(reward_pb2_grpc.RewardServiceServicer):
    async def GetRewardInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return wire.reward_info_to_proto(RewardInfo("judge", "2", value_min=0.0, value_max=1.0))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def generation(model: Path) -> Generation:
    tokenizer = load_tokenizer(model)
    return Generation(
        ModelInfo(
            model="tiny",
            engine="transformers",
            vocabulary_size=len(tokenizer),
            tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
            context_length=CONTEXT,
            end_token_ids=(2,),
            loaded=LoadedWeights(),
            bound_run_id="",
            bound_incarnation=0,
            instance_id="i",
            boot_id="b",
            capabilities=EngineCapabilities(frozenset({PushKind.FULL}), True, True, True, True),
        )
    )


@pytest.fixture
async def address(generation: Generation) -> AsyncIterator[str]:
    """A server with a generation service, a reward service and health."""
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(generation, server)
    reward_pb2_grpc.add_RewardServiceServicer_to_server(Reward(), server)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    serving = health_pb2.HealthCheckResponse.SERVING
    await checks.set("antiphon.v1.GenerationService", serving)
    await checks.set("antiphon.v1.RewardService", serving)
    await checks.set("antiphon.v1.TransitionService", health_pb2.HealthCheckResponse.NOT_SERVING)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


def _config(model: Path, **sections: Any) -> RunConfig:
    values: dict[str, Any] = {
        "magrpo": {"num_turns": 1, "max_new_tokens": 8, "control_timeout": 20},
        "agents": [{"model": str(model)}],
        "reward": {"function": "dry_run_tasks:reward"},
        "dataset": {"prompts": ["red green", "blue one two three"]},
    }
    config = RunConfig.model_validate({**values, **sections})
    config.check()
    return config


@pytest.fixture(autouse=True)
def _functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dry_run_tasks.py").write_text(
        "def reward(first):\n    return [1.0 for _ in first]\n"
        "def wrong(first, second, third):\n    return []\n"
        "def style(item):\n    return 'red ' * item['length']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "dry_run_tasks", raising=False)


def _of(found: DryRun, what: str) -> Finding:
    (finding,) = [finding for finding in found.findings if finding.what.startswith(what)]
    return finding


async def test_a_run_that_can_start_passes(model: Path, address: str) -> None:
    config = _config(
        model,
        agents=[{"model": str(model), "addresses": [address]}],
        reward={"address": address},
    )
    found = await Inspection(config).run()
    assert [f for f in found.findings if not f.ok] == []
    assert "context 32" in _of(found, "agents[0] at").detail
    assert "judge 2, values 0.0 to 1.0" in _of(found, "reward").detail
    assert "2 rows; columns prompt" in _of(found, "dataset").detail
    assert "longest 4 tokens, with max_new_tokens 8 of 32" in _of(found, "prompts").detail
    assert found.size.most_per_epoch is not None
    assert found.size.most_per_epoch.joint_actions == 8


async def test_the_optimisation_is_told_and_what_does_not_fit_it_is_found(model: Path) -> None:
    """One turn, two prompts, buffer 2, 20 epochs: 20 steps."""
    settings = {"num_turns": 1, "max_new_tokens": 8, "lr_scheduler_type": "cosine"}
    found = await Inspection(_config(model, magrpo=settings)).run()
    detail = _of(found, "optimisation").detail
    assert detail.startswith("at most 20 steps of each agent; agent 0: learning rate 5e-06, cosine")
    found = await Inspection(_config(model, magrpo={**settings, "warmup_steps": 20})).run()
    assert "warmup_steps: got 20" in _of(found, "optimisation").detail
    assert not found.ok


async def test_adapters_are_made_on_the_architecture_and_their_services_must_take_them(
    model: Path, generation: Generation, address: str
) -> None:
    agent = {"model": str(model), "addresses": [address], "lora": {"r": 2}}
    found = await Inspection(_config(model, agents=[agent])).run()
    assert "of an adapter, context" in _of(found, "agents[0].model").detail
    assert "without pushes of LoRA adapters" in _of(found, "agents[0] at").detail
    both = frozenset({PushKind.FULL, PushKind.ADAPTER})
    can = dataclasses.replace(generation.info.capabilities, push_kinds=both)
    generation.info = dataclasses.replace(generation.info, capabilities=can)
    assert (await Inspection(_config(model, agents=[agent])).run()).ok
    agent["lora"] = {"target_modules": ["nothing"]}
    found = await Inspection(_config(model, agents=[agent])).run()
    assert "lora of agent 0" in _of(found, "agents[0].model").detail


async def test_an_address_without_a_server_is_named_and_the_rest_is_looked_at(
    model: Path,
) -> None:
    config = _config(model, agents=[{"model": str(model), "addresses": ["127.0.0.1:1"]}])
    found = await Inspection(config).run()
    assert not found.ok
    detail = _of(found, "agents[0] at").detail
    assert "127.0.0.1:1" in detail
    assert "nothing listens there: start the service" in detail
    assert _of(found, "reward").ok
    assert _of(found, "prompts of agent 0").ok


async def test_services_that_a_file_lists_are_looked_at_each(
    model: Path, address: str, tmp_path: Path
) -> None:
    (tmp_path / "listed.txt").write_text(f"{address}\n127.0.0.1:1\n")
    agent = {"model": str(model), "addresses": [f"file://{tmp_path}/listed.txt"]}
    found = await Inspection(_config(model, agents=[agent])).run()
    assert _of(found, f"agents[0] at {address}").ok
    assert not _of(found, "agents[0] at 127.0.0.1:1").ok
    agent["addresses"] = ["file:///no/such/list.txt"]
    found = await Inspection(_config(model, agents=[agent])).run()
    assert not _of(found, "agents[0] at file:///no/such/list.txt").ok


async def test_a_server_without_health_and_without_the_service_is_found(model: Path) -> None:
    server = grpc.aio.server()
    nothing = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    magrpo = {"num_turns": 2, "max_new_tokens": 8}
    found = await Inspection(_config(model, magrpo=magrpo, transition={"address": nothing})).run()
    assert "another service" in _of(found, "transition").detail
    await server.stop(None)


async def test_a_service_that_does_not_serve_is_found(model: Path, address: str) -> None:
    config = _config(
        model,
        magrpo={"num_turns": 2, "max_new_tokens": 8},
        transition={"address": address},
    )
    found = await Inspection(config).run()
    assert "NOT_SERVING" in _of(found, "transition").detail
    assert not found.ok


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocabulary_size": 7}, "vocabulary: got 7"),
        ({"tokenizer_fingerprint": b"\0" * 32}, "tokenizer: got another one"),
    ],
)
async def test_a_service_of_another_model_is_found(
    model: Path, generation: Generation, address: str, change: dict[str, Any], message: str
) -> None:
    generation.info = dataclasses.replace(generation.info, **change)
    config = _config(model, agents=[{"model": str(model), "addresses": [address]}])
    found = await Inspection(config).run()
    assert message in _of(found, "agents[0] at").detail
    assert not found.ok


async def test_a_prompt_too_long_for_the_service_is_refused(model: Path, address: str) -> None:
    """L12: 100 tokens for a context of 32 is refused where it can be known."""
    config = _config(
        model,
        agents=[{"model": str(model), "addresses": [address]}],
        dataset={"prompts": ["red", "red " * 100]},
    )
    found = await Inspection(config).run()
    detail = _of(found, "prompts of agent 0").detail
    assert not found.ok
    assert "dataset[1]: got a prompt of 100 tokens and max_new_tokens 8, wanted 32" in detail


async def test_a_prompt_longer_than_an_engine_takes_by_itself_is_refused(
    model: Path, generation: Generation, address: str
) -> None:
    """L12: within the context, and beyond what a server takes as input."""
    generation.info = dataclasses.replace(generation.info, max_prompt_tokens=4)
    agents = [{"model": str(model), "addresses": [address]}]
    fits = await Inspection(_config(model, agents=agents)).run()
    assert fits.ok
    assert "context 32, prompts of at most 4" in _of(fits, "agents[0] at").detail
    over = _config(model, agents=agents, dataset={"prompts": ["red " * 5]})
    detail = _of(await Inspection(over).run(), "prompts of agent 0").detail
    assert "dataset[0]: got a prompt of 5 tokens, wanted at most 4" in detail


async def test_prompt_and_budget_that_just_fit_pass(model: Path, address: str) -> None:
    """L12: prompt + max_new_tokens may fill the context and not exceed it."""
    agents = [{"model": str(model), "addresses": [address]}]
    fits = _config(model, agents=agents, dataset={"prompts": ["red " * 24]})
    assert (await Inspection(fits).run()).ok
    over = _config(model, agents=agents, dataset={"prompts": ["red " * 25]})
    assert not (await Inspection(over).run()).ok


async def test_formatters_write_the_prompts_that_are_measured(tmp_path: Path, model: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"length": 3}\n{"length": 11}\n')
    config = _config(
        model,
        dataset={"path": str(rows)},
        formatters={"functions": "dry_run_tasks:style"},
    )
    found = await Inspection(config).run()
    assert "longest 11 tokens" in _of(found, "prompts of agent 0").detail


async def test_a_missing_prompt_column_lists_the_columns(tmp_path: Path, model: Path) -> None:
    """L22: fails at start and lists the columns."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "q", "answer": 3}\n')
    found = await Inspection(_config(model, dataset={"path": str(rows)})).run()
    assert "columns question, answer" in _of(found, "dataset").detail


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ({"name": "a/b"}, "run.name: got 'a/b', wanted the name of a folder"),
        ({"directory": f"{__file__}/runs"}, "test_dry_run.py cannot be written to"),
    ],
)
async def test_a_folder_that_no_run_can_have_is_found(
    model: Path, run: dict[str, str], told: str
) -> None:
    found = await Inspection(_config(model, run=run)).run()
    assert told in _of(found, "run").detail
    assert not found.ok


async def test_the_folder_that_the_run_will_have_is_told(model: Path, tmp_path: Path) -> None:
    async def told(**run: str) -> str:
        found = await Inspection(_config(model, run={"directory": str(runs), **run})).run()
        return _of(found, "run").detail

    runs = tmp_path / "runs"
    assert await told() == f"{runs}/DATE-TIME"
    assert await told(name="job") == f"{runs}/job"
    assert RunFolder.create(runs, "job").path == runs / "job"
    assert await told(name="job") == f"{runs}/job-2, as {runs}/job is there"
    assert RunFolder.create(runs, "job").path == runs / "job-2"


async def test_what_cannot_be_evaluated_is_found(model: Path) -> None:
    def evaluated(prompts: list[str], metric: str) -> RunConfig:
        magrpo = {"num_turns": 1, "max_new_tokens": 8, "best_metric": metric}
        return _config(model, eval_dataset={"prompts": prompts}, magrpo=magrpo)

    found = await Inspection(evaluated(["red"] * 9, "eval/turn_1/reward_mean")).run()
    assert _of(found, "evaluation").detail == "4 tasks every 16 prompts"
    found = await Inspection(evaluated(["red"], "eval/turn_2/reward_mean")).run()
    assert "best_metric" in _of(found, "evaluation").detail
    assert not found.ok


@pytest.mark.parametrize("name", ["dry_run_tasks:wrong", "dry_run_tasks:missing", "no_such:f"])
async def test_a_function_that_cannot_be_used_is_found(model: Path, name: str) -> None:
    found = await Inspection(_config(model, reward={"function": name})).run()
    finding = _of(found, "reward")
    assert not finding.ok
    assert name.split(":")[0 if name.startswith("no") else 1] in finding.detail


async def test_a_model_that_is_not_there_is_found(model: Path, tmp_path: Path) -> None:
    config = _config(model, agents=[{"model": str(tmp_path / "nowhere")}])
    found = await Inspection(config).run()
    detail = _of(found, "agents[0].model").detail
    assert f"model {tmp_path}/nowhere: got no such file or folder" in detail
    assert found.size.most_per_prompt.nodes == 1


async def test_the_view_shows_settings_sizes_and_failures(model: Path) -> None:
    config = _config(model, reward={"function": "no_such:f"})
    found = await Inspection(config).run()
    console = Console(file=io.StringIO(), width=140, record=True)
    show_dry_run(console, config, found)
    text = console.export_text()
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "default" not in lines["magrpo.max_new_tokens"]
    assert "default" in lines["magrpo.discount"]
    assert "per prompt, at most" in text
    assert "FAILED  reward" in text
    assert text.rstrip().endswith("checks failed")
