"""Runs what a TOML file describes: models loaded, functions found, then as every other run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.types import RunState
from antiphon.learner.checkpoints.resume import ended_for_good, open_run
from antiphon.learner.config.checkpoints import checkpoint_settings
from antiphon.learner.config.per_agent import of_agent
from antiphon.learner.config.run_file import AgentSettings, FunctionSettings, RunConfig
from antiphon.learner.data.formatters import Prompts
from antiphon.learner.data.sources import open_dataset
from antiphon.learner.data.tasks import Tasks
from antiphon.learner.evaluation.setup import EvaluationSetup, evaluation_setup
from antiphon.learner.policy.adapters import base_of, with_adapter
from antiphon.learner.policy.devices import usable_devices
from antiphon.learner.record.progress import Silent, open_progress
from antiphon.learner.record.trackers.settings import WandbConfig, trackers_of
from antiphon.learner.rollout.centralized import Centralized, TaggedAdapter
from antiphon.learner.run.agent_models import check_vocabulary
from antiphon.learner.run.launch import train
from antiphon.learner.run.setup import AgentSetup, RunSetup, usable_cores
from antiphon.services.common.load_function import load_function
from antiphon.services.common.models import load_model, load_tokenizer

if TYPE_CHECKING:
    from antiphon.learner.distributed.leader import Leader


def train_from_config(
    config: RunConfig,
    *,
    resume: str | None = None,
    ranks: Leader | None = None,
    command: str = "the same command",
) -> RunState:
    """Train the run that a TOML file describes, on the main thread.

    The run folder gets the resolved settings, the record, and the trained models where
    `run.save_models` says so.

    Args:
        config: The run.
        resume: The run or checkpoint to go on from, as in `MAGRPOTrainer.train`; None begins anew.
        ranks: The processes that hold the policies; None for this one alone.
        command: What the user has typed, for the line that says how to go on.

    Returns:
        FINISHED, or STOPPED where somebody asked for the end.

    Raises:
        FieldError: A setting does not fit the models or the data.
        KeyboardInterrupt: SIGINT came; the run has ended in order.
        SystemExit: SIGTERM came (143); the run has ended in order.
        Exception: The root error of a run that failed.
    """
    setup = setup_from_config(config, ranks)
    checkpoints = checkpoint_settings(config.magrpo)
    run = open_run(
        setup,
        config.resolved(),
        runs=config.run.directory.absolute(),
        name=config.run.name,
        checkpoints=checkpoints,
        resume_from=resume,
    )
    if ended_for_good(run.folder, run.checkpoint):
        state = RunState.FINISHED
    else:
        state = train(
            setup,
            run.folder,
            resume_with=f"{command} --resume {shlex.quote(str(run.folder.path))}",
            checkpoints=checkpoints,
            resume=run.checkpoint,
            notes=run.notes,
        )
    where = run.folder.path / "SUMMARY.md"
    sys.stdout.write(f"The run has {state.value}: {where}\n")
    return state


def setup_from_config(config: RunConfig, ranks: Leader | None = None) -> RunSetup:
    """The run, with models loaded and functions found; models stay empty where `ranks` hold them.

    Raises:
        FieldError: A setting does not fit the models or the data.
        StartError: A function is not there.
    """
    reward = _function_or_service(config, config.reward)
    assert reward is not None  # checked when the config was read
    processor = config.reward.processor
    prompts = Prompts(
        _formatters(config),
        config.num_agents,
        passthrough=config.magrpo.external_prompt_passthrough,
    )
    return RunSetup(
        config=config.training,
        tasks=Tasks(open_dataset(config.dataset), name="dataset", order=config.magrpo.row_order),
        prompts=prompts,
        reward=reward,
        transition=_function_or_service(config, config.transition),
        agents=_agents(config, ranks),
        open_progress=open_progress
        if config.wandb is None or config.wandb.shows_progress
        else Silent,
        reward_processor=None if processor is None else load_function(processor),
        server=config.server,
        threads=config.run.threads or usable_cores(),
        save_models=config.run.save_models,
        merge_adapters=config.run.merge_adapters,
        trackers=trackers_of(config.magrpo.trackers, config.wandb),
        wandb=config.wandb or WandbConfig(),
        centralized=centralized_from(config, prompts),
        evaluation=evaluation_from_config(config),
        generation_arguments=config.generation.arguments,
        ranks=ranks,
    )


def _agents(config: RunConfig, ranks: Leader | None) -> tuple[AgentSetup, ...]:
    devices = usable_devices(config.magrpo.agent_devices, len(config.players))
    agents: list[AgentSetup] = []
    for number, settings in enumerate(config.players):
        addresses = tuple(config.endpoint(address) for address in settings.addresses)
        rate = config.learning_rate(number)
        if agents and config.magrpo.shared_policy:
            agents.append(replace(agents[0], endpoints=addresses, learning_rate=rate))
            continue
        if ranks is None:
            model = _model(config, number).to(settings.device or devices[number])
        else:
            model = ranks.sources[number].architecture(torch.float32)
        tokenizer = _tokenizer(settings)
        check_vocabulary(number, base_of(model), tokenizer)
        agents.append(
            AgentSetup(
                model,
                tokenizer,
                Path(settings.model).name if Path(settings.model).exists() else settings.model,
                addresses,
                rate,
            )
        )
    return tuple(agents)


def _model(config: RunConfig, agent: int) -> Any:
    settings = config.players[agent]
    model = load_model(settings.model, dtype=torch.float32, gguf_file=settings.gguf_file)
    lora = of_agent(config.training.lora, agent)
    if lora is None:
        return model
    return with_adapter(model, lora, agent=agent, seed=config.magrpo.seed)


def evaluation_from_config(config: RunConfig) -> EvaluationSetup | None:
    """What the run evaluates on; None where it evaluates nothing.

    Raises:
        FieldError: The dataset cannot be opened, or a function takes other arguments.
        StartError: A function is not there.
    """
    dataset, own = config.eval_dataset, config.evaluation
    return evaluation_setup(
        None if dataset is None else open_dataset(dataset),
        None if own.logger is None else load_function(own.logger),
        None if own.aggregator is None else load_function(own.aggregator),
    )


def centralized_from(config: RunConfig, prompts: Prompts) -> Centralized | None:
    """What joins prompts and splits answers where one model answers for all agents, else None.

    Raises:
        FieldError: The adapter lacks a method.
        StartError: There is no such adapter.
    """
    if config.centralized is None:
        return None
    name = config.centralized.adapter
    make_adapter = TaggedAdapter if name is None else load_function(name)
    return Centralized(make_adapter(), prompts, config.num_agents)


def _tokenizer(settings: AgentSettings) -> Any:
    own = settings.tokenizer is None  # a tokenizer that is given has a place of its own
    return load_tokenizer(settings.tokenizer_source, gguf_file=settings.gguf_file if own else None)


def _formatters(config: RunConfig) -> Callable[..., str] | list[Callable[..., str] | None] | None:
    functions = config.formatters.functions
    if isinstance(functions, str):
        return load_function(functions)
    if not functions:
        return None
    loaded = [load_function(function) for function in functions]
    return loaded[0] if len(loaded) == 1 else list(loaded)


def _function_or_service(
    config: RunConfig, settings: FunctionSettings
) -> Callable[..., Any] | Endpoint | None:
    if settings.address is not None:
        return config.endpoint(settings.address)
    return None if settings.function is None else load_function(settings.function)
