"""What `antiphon train --dry-run` looks at: everything that a run needs, without training."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import grpc

from antiphon.clients.connection import Client
from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.generation import GenerationClient
from antiphon.clients.names import UnresolvedError, resolve
from antiphon.clients.reward import RewardClient
from antiphon.clients.transition import TransitionClient
from antiphon.clients.types import FieldError, ModelInfo, RewardInfo
from antiphon.learner.config.per_agent import of_agent
from antiphon.learner.config.run_file import FunctionSettings, RunConfig
from antiphon.learner.data.formatters import Prompts
from antiphon.learner.data.sources import open_dataset
from antiphon.learner.data.tasks import CHECK_ALL_UP_TO, Tasks
from antiphon.learner.evaluation.setup import check_evaluation
from antiphon.learner.policy.adapters import with_adapter
from antiphon.learner.policy.step_plan import notes_of
from antiphon.learner.record.run_folder import check_run_name, check_writable, free_path
from antiphon.learner.rollout.prompt_encoding import PromptEncoder
from antiphon.learner.rollout.size import RunSize, most_optimizer_steps, run_size
from antiphon.learner.run.toml_run import centralized_from, evaluation_from_config
from antiphon.learner.start_wait import ONCE, explained
from antiphon.learner.weights.connect import check_fit, needs_in_run
from antiphon.services.common.errors import StartError, UserFunctionError
from antiphon.services.common.models import (
    context_length,
    load_model,
    load_tokenizer,
)
from antiphon.services.common.user_functions import (
    RewardFunction,
    TransitionFunction,
    load_function,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

T = TypeVar("T")

# What a wrong setting can lead to; anything else is a defect and travels.
_FAILURES = (
    CallError,
    ContractError,
    FieldError,
    StartError,
    UserFunctionError,
    OSError,
    ValueError,
    ImportError,
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    ok: bool
    detail: str


@dataclass
class DryRun:
    """What was found. `size` is there whatever else fails."""

    size: RunSize
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the run could start."""
        return all(finding.ok for finding in self.findings)


@dataclass(frozen=True)
class Architecture:
    """An agent's model without its weights, and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def parameters(self) -> int:
        """Number of parameters, those of an adapter included."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def context(self) -> int:
        """Most tokens of a prompt and its completion."""
        return context_length(self.model.config)


@dataclass(frozen=True)
class _Limits:
    """Most tokens of a prompt with its completion, and of a prompt alone."""

    context: int = sys.maxsize
    prompt: int = sys.maxsize

    def within(self, info: ModelInfo) -> _Limits:
        """What a service leaves of it."""
        return _Limits(
            min(self.context, info.context_length), min(self.prompt, info.longest_prompt)
        )


class Inspection:
    """Looks at a run's parts one after the other; what fails is a finding, and the rest goes on."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._findings: list[Finding] = []

    async def run(self) -> DryRun:
        """Look at dataset, models, prompts, functions and addresses."""
        config = self._config
        prompts = await self._look("formatters", self._prompts)
        tasks = await self._look("dataset", lambda: self._tasks(prompts))
        if tasks is not None:
            await self._look("optimisation", partial(self._optimisation, tasks))
        if config.eval_dataset is not None or config.magrpo.best_metric is not None:
            await self._look("evaluation", lambda: self._evaluation(prompts))
        models = await self._models()
        limits = await self._generation(models)
        if prompts is not None and tasks is not None:
            for agent in range(len(config.players)):
                number = agent % len(models)  # one model may play all agents
                model = models[number]
                if model is not None:
                    await self._prompt_lengths(agent, prompts, tasks, model, limits[number])
        await self._reward()
        await self._transition()
        await self._look("run", self._folder)
        await self._look("server", self._server)
        length = None if tasks is None else tasks.length
        return DryRun(run_size(config.magrpo, len(config.players), length), self._findings)

    async def _look(
        self, what: str, look: Callable[[], tuple[T, str] | Awaitable[tuple[T, str]]]
    ) -> T | None:
        try:
            found = look()
            value, detail = await found if isinstance(found, Awaitable) else found
        except _FAILURES as error:
            self._findings.append(Finding(what, False, str(error)))
            return None
        self._findings.append(Finding(what, True, detail))
        return value

    def _folder(self) -> tuple[None, str]:
        run = self._config.run
        if run.name is not None:
            check_run_name(run.name)
        check_writable(run.directory)
        if run.name is None:
            return None, str(run.directory / "DATE-TIME")
        wanted, path = run.directory / run.name, free_path(run.directory, run.name)
        return None, str(path) if path == wanted else f"{path}, as {wanted} is there"

    def _prompts(self) -> tuple[Prompts, str]:
        names = self._config.formatters.functions
        listed = (names,) if isinstance(names, str) else names
        functions = [load_function(name) for name in listed]
        prompts = Prompts(
            None if not functions else functions[0] if len(functions) == 1 else functions,
            self._config.num_agents,
            passthrough=self._config.magrpo.external_prompt_passthrough,
        )
        return prompts, ", ".join(listed) or "none; the prompt column as it is"

    def _tasks(self, prompts: Prompts | None) -> tuple[Tasks, str]:
        tasks = Tasks(open_dataset(self._config.dataset), name="dataset")
        tasks.check(needed=() if prompts is None else prompts.needed_columns)
        rows = "an unknown number of" if tasks.length is None else tasks.length
        return tasks, f"{rows} rows; columns {', '.join(tasks.columns())}"

    def _evaluation(self, prompts: Prompts | None) -> tuple[None, str]:
        evaluation, config = evaluation_from_config(self._config), self._config.magrpo
        check_evaluation(evaluation, config, () if prompts is None else prompts.needed_columns)
        assert evaluation is not None  # else it has been refused
        rows = evaluation.tasks.length
        most = config.eval_num_samples if rows is None else min(rows, config.eval_num_samples)
        return None, f"{most} tasks every {config.eval_interval} prompts"

    def _optimisation(self, tasks: Tasks) -> tuple[None, str]:
        config, agents = self._config.training, len(self._config.players)
        told = notes_of(config, agents, tasks.length, self._config.learning_rate)
        if tasks.length is None:
            return None, "; ".join(["as many steps as the dataset gives", *told])
        sharing = agents if config.shared_policy else 1
        most = most_optimizer_steps(config, agents, tasks.length, sharing=sharing)
        most = min(most, config.max_steps or most)
        return None, "; ".join([f"at most {most:,} steps of each agent", *told])

    async def _models(self) -> list[Architecture | None]:
        loaded: dict[Hashable, Architecture | None] = {}
        models = []
        for number, agent in enumerate(self._config.agents):
            lora = of_agent(self._config.training.lora, number)
            key = (agent.model, agent.gguf_file, agent.tokenizer_source, lora)
            if key not in loaded:
                load = partial(load_architecture, self._config, number)
                loaded[key] = await self._look(f"agents[{number}].model", load)
            models.append(loaded[key])
        return models

    async def _generation(self, models: Sequence[Architecture | None]) -> list[_Limits]:
        """Look at every address; what each agent's prompts must fit in the end."""
        limits = []
        for number, (agent, model) in enumerate(zip(self._config.agents, models, strict=True)):
            least = _Limits() if model is None else _Limits(model.context, model.context)
            if not agent.addresses:
                self._findings.append(
                    Finding(f"agents[{number}]", True, "a generation service is started here")
                )
            for endpoint in await self._behind(number, agent.addresses):
                ask = partial(self._model_info, number, endpoint, model)
                info = await self._look(f"agents[{number}] at {endpoint.address}", ask)
                if info is not None:
                    least = least.within(info)
            limits.append(least)
        return limits

    async def _behind(self, number: int, addresses: Sequence[Endpoint]) -> list[Endpoint]:
        """The services behind addresses and names."""
        found: list[Endpoint] = []
        for address in addresses:
            endpoint = self._config.endpoint(address)
            try:
                found += await resolve(endpoint, timeout=self._config.magrpo.control_timeout)
            except (UnresolvedError, ValueError) as error:
                where = f"agents[{number}] at {address.address}"
                self._findings.append(Finding(where, False, str(error)))
        return found

    async def _model_info(
        self, number: int, endpoint: Endpoint, model: Architecture | None
    ) -> tuple[ModelInfo, str]:
        timeout = self._config.magrpo.control_timeout
        async with GenerationClient(endpoint, retry=ONCE) as client:
            await check_serves(client, timeout)
            info = await client.get_model_info(timeout)
        if model is not None:
            needs = needs_in_run(self._config.training, number, model.model, model.tokenizer)
            check_fit(info, needs, endpoint.address)
        prompts = f", prompts of at most {info.longest_prompt}" if info.max_prompt_tokens else ""
        return info, (
            f"serving {info.model} with engine {info.engine}, vocabulary {info.vocabulary_size}, "
            f"context {info.context_length}{prompts}, weights version {info.loaded.version}"
        )

    async def _prompt_lengths(
        self, agent: int, prompts: Prompts, tasks: Tasks, model: Architecture, limits: _Limits
    ) -> None:
        def look() -> tuple[None, str]:
            joint = centralized_from(self._config, prompts)
            encoder = PromptEncoder(self._config.magrpo, agent, model.tokenizer)
            longest, where = 0, 0
            for row in tasks.epoch():
                if row.row >= CHECK_ALL_UP_TO:
                    break
                item = row.task.item
                content = prompts.first(agent, item) if joint is None else joint.first(item)[0]
                tokens = len(encoder.encode(content).token_ids)
                if tokens > longest:
                    longest, where = tokens, row.row
            most, context = self._config.magrpo.max_new_tokens, limits.context
            if longest + most > context:
                raise FieldError(
                    f"dataset[{where}]",
                    f"a prompt of {longest} tokens and max_new_tokens {most}",
                    f"{context} together at most, the context; shorten one of them",
                )
            if longest > limits.prompt:
                raise FieldError(
                    f"dataset[{where}]",
                    f"a prompt of {longest} tokens",
                    f"at most {limits.prompt}, as its generation services take; shorten it, or "
                    "serve with a higher limit",
                )
            detail = f"longest {longest} tokens, with max_new_tokens {most} of {context}"
            return None, detail

        await self._look(f"prompts of agent {agent}", look)

    async def _reward(self) -> None:
        reward, magrpo = self._config.reward, self._config.magrpo

        def function(name: str) -> object:
            return RewardFunction(
                load_function(name), self._config.num_agents, magrpo.reward_batch_size
            )

        async def service(endpoint: Endpoint) -> str:
            async with RewardClient(endpoint, retry=ONCE) as client:
                await check_serves(client, magrpo.control_timeout)
                await client.check(magrpo.control_timeout)
                return reward_detail(await client.get_info(magrpo.control_timeout))

        await self._function("reward", reward, function, service)
        if reward.processor is not None:
            name = reward.processor
            await self._look("reward.processor", lambda: (load_function(name), f"function {name}"))

    async def _transition(self) -> None:
        def function(name: str) -> object:
            return TransitionFunction(load_function(name), self._config.num_agents)

        async def service(endpoint: Endpoint) -> str:
            async with TransitionClient(endpoint, retry=ONCE) as client:
                await check_serves(client, self._config.magrpo.control_timeout)
                await client.check(self._config.magrpo.control_timeout)
            return "serving"

        settings = self._config.transition
        if settings.function is not None or settings.address is not None:
            await self._function("transition", settings, function, service)

    async def _function(
        self,
        section: str,
        settings: FunctionSettings,
        function: Callable[[str], object],
        service: Callable[[Endpoint], Awaitable[str]],
    ) -> None:
        name, address = settings.function, settings.address

        async def look() -> tuple[None, str]:
            if name is not None:
                function(name)
                return None, f"function {name}, served here"
            assert address is not None
            return None, await service(self._config.endpoint(address))

        where = section if address is None else f"{section} at {address.address}"
        await self._look(where, look)

    def _server(self) -> tuple[None, str]:
        self._config.server.check()
        return None, f"on {self._config.server.host}"


def load_architecture(config: RunConfig, number: int) -> tuple[Architecture, str]:
    """An agent's architecture and tokenizer, and in words how large it is."""
    import torch

    agent = config.agents[number]
    with torch.device("meta"):  # the architecture alone: no weights are read, no memory is taken
        model = load_model(
            agent.model, dtype=torch.float32, weights=False, gguf_file=agent.gguf_file
        )
    gguf_file = agent.gguf_file if agent.tokenizer is None else None
    tokenizer = load_tokenizer(agent.tokenizer_source, gguf_file=gguf_file)
    parameters = sum(p.numel() for p in model.parameters())
    detail = f"{parameters:,} parameters"
    if lora := of_agent(config.training.lora, number):
        model = with_adapter(model, lora, agent=number, seed=config.magrpo.seed)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        detail += f" and {trained:,} of an adapter"
    loaded = Architecture(model, tokenizer)
    return loaded, f"{detail}, context {loaded.context} tokens"


async def check_serves(client: Client, timeout: float) -> None:
    """Ask a service's health.

    Raises:
        CallError: It cannot be reached, and what to do about it.
        FieldError: It says that it does not serve, or another service answers there.
    """
    try:
        status = await client.health(timeout)
    except CallError as error:
        if error.code is grpc.StatusCode.NOT_FOUND:
            raise FieldError(client.address, "a server without it", client.service) from error
        raise await explained(client, error, timeout) from error
    if status != "SERVING":
        raise FieldError(f"{client.service} at {client.address}", status, "SERVING; see its log")


def reward_detail(info: RewardInfo) -> str:
    """What a reward service says of itself, in words."""
    parts = [f"serving {info.name} {info.version}".rstrip()]
    if info.value_min is not None or info.value_max is not None:
        parts.append(f"values {info.value_min} to {info.value_max}")
    if info.max_batch_size:
        parts.append(f"at most {info.max_batch_size} joint actions a call")
    if info.max_concurrent_calls:
        parts.append(f"{info.max_concurrent_calls} calls at once")
    return ", ".join(parts)


def inspect_run(config: RunConfig) -> DryRun:
    """Look at everything that a run needs. Runs user code (formatters) on the calling thread."""
    return asyncio.run(Inspection(config).run())
