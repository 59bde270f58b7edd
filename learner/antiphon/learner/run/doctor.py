"""What `antiphon doctor` looks at: every address of a run, and whether what answers there fits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.generation import GenerationClient
from antiphon.clients.names import UnresolvedError, resolve
from antiphon.clients.reach import Remark, Verdict, reach
from antiphon.clients.retry import RetryPolicy
from antiphon.clients.reward import RewardClient
from antiphon.clients.types import FieldError, ModelInfo
from antiphon.learner.concurrency import task_group
from antiphon.learner.config.run_file import RunConfig
from antiphon.learner.run.dry_run import Architecture, load_architecture, reward_detail
from antiphon.learner.weights.connect import check_fit, needs_in_run

GENERATION = "antiphon.v1.GenerationService"
REWARD = "antiphon.v1.RewardService"
TRANSITION = "antiphon.v1.TransitionService"
_ONCE = RetryPolicy(attempts=1)
_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class Patient:
    """One address and what was found out about it, step by step."""

    name: str
    address: str
    remarks: tuple[Remark, ...]

    @property
    def worst(self) -> Verdict:
        """The worst of its remarks."""
        return max((remark.verdict for remark in self.remarks), key=list(Verdict).index)


async def examine(config: RunConfig) -> list[Patient]:
    """Examine every address that a run file names, side by side.

    Addresses that a run starts itself are not looked at: there is nothing yet.
    """
    models = [_architecture(config, number) for number in range(len(config.agents))]
    unknown: list[Patient] = []
    behind = [
        [
            endpoint
            for address in agent.addresses
            for endpoint in await _behind(config, number, address, unknown)
        ]
        for number, agent in enumerate(config.agents)
    ]
    async with task_group() as group:
        examined = [
            group.create_task(_generation(config, number, endpoint, models[number]))
            for number, endpoints in enumerate(behind)
            for endpoint in endpoints
        ]
        if config.reward.address is not None:
            examined.append(group.create_task(_reward(config, config.reward.address)))
        if config.transition.address is not None:
            examined.append(group.create_task(_transition(config, config.transition.address)))
    return unknown + [task.result() for task in examined]


async def _behind(
    config: RunConfig, number: int, address: Endpoint, unknown: list[Patient]
) -> tuple[Endpoint, ...]:
    """The services behind an address or a name; a name without any is noted in `unknown`."""
    endpoint = config.endpoint(address)
    try:
        found = await resolve(endpoint, timeout=config.magrpo.control_timeout)
    except (UnresolvedError, ValueError) as error:
        found, why = (), str(error)
    else:
        why = "nobody is behind it"
    if not found:
        advice = "start its services, or compare the name; docs/elastic.md"
        remark = Remark("name", Verdict.FAULT, why, advice)
        unknown.append(Patient(f"agents[{number}]", endpoint.address, (remark,)))
    return found


def _architecture(config: RunConfig, number: int) -> Architecture | Remark | None:
    """The agent's model without its weights, where it has addresses that it must fit."""
    if not config.agents[number].addresses:
        return None
    try:
        return load_architecture(config, number)[0]
    except (FieldError, OSError, ValueError, ImportError) as error:
        advice = f"see agents[{number}].model; the learner loads it too"
        return Remark("model", Verdict.FAULT, str(error), advice)


async def _generation(
    config: RunConfig, number: int, address: Endpoint, model: Architecture | Remark | None
) -> Patient:
    endpoint, timeout = address, config.magrpo.control_timeout
    size = 0
    if isinstance(model, Architecture):
        size = model.parameters * _BYTES[config.magrpo.wire_dtype]
    remarks = await reach(endpoint, GENERATION, timeout=timeout, push_bytes=size)

    async def fits() -> list[Remark]:
        async with GenerationClient(endpoint, retry=_ONCE) as client:
            info = await client.get_model_info(timeout)
        return [_fit(config, number, info, model), _context(config, info), _bound(info)]

    return Patient(f"agents[{number}]", address.address, await _and(remarks, fits))


async def _reward(config: RunConfig, address: Endpoint) -> Patient:
    endpoint, timeout = config.endpoint(address), config.magrpo.control_timeout
    remarks = await reach(endpoint, REWARD, timeout=timeout)

    async def tells() -> list[Remark]:
        async with RewardClient(endpoint, retry=_ONCE) as client:
            info = await client.get_info(timeout)
        return [Remark("reward", Verdict.OK, reward_detail(info))]

    return Patient("reward", address.address, await _and(remarks, tells))


async def _transition(config: RunConfig, address: Endpoint) -> Patient:
    endpoint, timeout = config.endpoint(address), config.magrpo.control_timeout
    remarks = await reach(endpoint, TRANSITION, timeout=timeout)
    return Patient("transition", address.address, tuple(remarks))


async def _and(
    remarks: list[Remark], more: Callable[[], Awaitable[list[Remark]]]
) -> tuple[Remark, ...]:
    """What else there is to say of a service that can be called."""
    if any(remark.verdict is Verdict.FAULT for remark in remarks):
        return tuple(remarks)
    try:
        return (*remarks, *await more())
    except (CallError, ContractError) as error:
        return (*remarks, Remark("calls", Verdict.FAULT, str(error), "read the service's log"))


def _fit(
    config: RunConfig, number: int, info: ModelInfo, model: Architecture | Remark | None
) -> Remark:
    if not isinstance(model, Architecture):
        return model or Remark("model", Verdict.OK, f"{info.model}, engine {info.engine}")
    needs = needs_in_run(config.training, number, model.model, model.tokenizer)
    try:
        check_fit(info, needs, "its address")
    except FieldError as error:
        advice = "serve the model that the run names, or name the model that is served"
        return Remark("model", Verdict.FAULT, f"got {error.got}, wanted {error.wanted}", advice)
    return Remark("model", Verdict.OK, f"{info.model}, engine {info.engine}: fits the agent")


def _context(config: RunConfig, info: ModelInfo) -> Remark:
    most, context = config.magrpo.max_new_tokens, info.context_length
    if most >= context:
        return Remark(
            "context",
            Verdict.FAULT,
            f"{context} tokens, and max_new_tokens is {most}",
            "lower magrpo.max_new_tokens, or serve with a longer context",
        )
    prompts = min(context - most, info.longest_prompt)
    return Remark("context", Verdict.OK, f"{context} tokens, {prompts} of them for prompts")


def _bound(info: ModelInfo) -> Remark:
    loaded = f"weights version {info.loaded.version}"
    if not info.bound_run_id:
        return Remark("run", Verdict.OK, f"free, {loaded}")
    return Remark(
        "run",
        Verdict.OK,
        f"belongs to run {info.bound_run_id}, incarnation {info.bound_incarnation}, {loaded}",
        "another run is let in once that one has been silent for the service's --run-lease",
    )
