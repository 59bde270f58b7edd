"""What a run on one machine starts itself: generation services and the script's functions.

Generation services are child processes that start from "architecture and tokenizer only" and get
their weights by the first push. The script's functions are served over gRPC from this process and
run on its main thread. Everything listens on unix sockets in a private folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.clients.endpoint import Endpoint
from antiphon.learner.concurrency import task_group
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.run.children import Child, ChildError, stop_children
from antiphon.learner.run.nursery import Nursery, child_environment, take_nursery
from antiphon.learner.run.setup import AgentSetup, RunSetup
from antiphon.services.common.hosting import Host
from antiphon.services.common.server import Server
from antiphon.services.common.server_settings import ServerSettings
from antiphon.services.common.user_functions import RewardFunction, TransitionFunction
from antiphon.services.reward import reward_server
from antiphon.services.transition import transition_server

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LONGEST_SOCKET_FOLDER = 60
"""Characters; a unix socket's whole path must stay below 108."""
SOCKETS_PREFIX = "antiphon-"
CHILD_GRACE = 10.0
"""Seconds that a child has to end before it is killed."""


class LocalServices:
    """The services that a run starts itself.

    Args:
        setup: The run.
        folder: The run's folder: logs, addresses, models without weights.
        host: This process: runs user functions on its main thread.
    """

    def __init__(self, setup: RunSetup, folder: Path, host: Host) -> None:
        self._setup = setup
        self._folder = folder
        self._host = host
        self.children: list[Child] = []
        self._nursery: Nursery | None = None
        self._last_call: int | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LocalServices]:
        """Everything that was started within the block is gone after it, whatever happens."""
        async with AsyncExitStack() as self._stack:
            try:
                yield self
            finally:
                await asyncio.to_thread(stop_children, self.children, grace=CHILD_GRACE)
                if self._nursery is not None:
                    self._nursery.close()
                if self._last_call is not None:
                    os.close(self._last_call)
                self._drop_sockets()

    @cached_property
    def _sockets(self) -> Path:
        """A private folder for sockets, made when one is needed; that of a killed learner goes."""
        noted = self._noted_sockets
        if noted.exists():
            _remove_sockets(Path(noted.read_text()))
        folder = Path(tempfile.mkdtemp(prefix=SOCKETS_PREFIX, dir=_socket_parent()))
        noted.parent.mkdir(parents=True, exist_ok=True)
        noted.write_text(str(folder))
        return folder

    def _drop_sockets(self) -> None:
        """Remove the folder for sockets; a later learner's is left alone."""
        folder = self.__dict__.get("_sockets")
        if folder is not None:
            _remove_sockets(folder)
            if self._noted_sockets.exists() and self._noted_sockets.read_text() == str(folder):
                self._noted_sockets.unlink()

    @property
    def _noted_sockets(self) -> Path:
        """The file that says where the folder for sockets is."""
        return self._folder / "services" / "sockets"

    async def generation(self) -> list[tuple[Endpoint, ...]]:
        """Where each policy is served; services are started for those without endpoints.

        Raises:
            ChildError: A service did not come up; with the end of its log.
        """
        setup = self._setup
        local = [agents[0] for agents in setup.policies if not setup.endpoints(agents)]
        threads = max(1, setup.threads // max(1, len(local)))
        if local:
            self._nursery = take_nursery()
        for number in local:
            agent = setup.agents[number]
            self.children.append(await asyncio.to_thread(self._start, number, agent, threads))
        within = setup.config.start_timeout
        async with task_group() as group:
            asked = [group.create_task(child.address(within=within)) for child in self.children]
        addresses = iter([Endpoint.of(task.result()) for task in asked])
        return [setup.endpoints(agents) or (next(addresses),) for agents in setup.policies]

    async def reward(self) -> Endpoint:
        """Where rewards come from: the service given, or the function served here."""
        reward = self._setup.reward
        if isinstance(reward, Endpoint):
            return reward
        function = RewardFunction(
            reward,
            self._setup.num_roles,
            self._setup.config.reward_batch_size,
            record_call=self._record_call,
        )
        return await self._serve(
            reward_server(
                self._here("reward"),
                function,
                self._host,
                call_timeout=self._setup.config.score_timeout,
                max_batch_size=0 if self._setup.config.on_score_failure == "stop" else None,
            )
        )

    async def transition(self) -> Endpoint | None:
        """Where later prompts come from: the service given, or the function served here."""
        transition = self._setup.transition
        if transition is None or isinstance(transition, Endpoint):
            return transition
        function = TransitionFunction(
            transition, self._setup.num_roles, record_call=self._record_call
        )
        return await self._serve(
            transition_server(
                self._here("transition"),
                function,
                self._host,
                call_timeout=self._setup.config.transition_timeout,
            )
        )

    async def watch(self) -> None:
        """Never return; fail once a child has ended by itself.

        Raises:
            ChildError: Names it, with the end of its log.
        """
        ends = {asyncio.create_task(child.ended()): child for child in self.children}
        if not ends:
            await asyncio.Event().wait()
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()
        ended = done.pop()
        child = ends[ended]
        raise ChildError(
            f"the {child.name} ended with code {ended.result()} in the middle of the run; its log "
            f"{child.log_file} ends with:\n{child.log_end()}"
        )

    def kill(self) -> None:
        """End all children at once; for a process that is about to end itself."""
        for child in self.children:
            child.kill()

    def _start(self, number: int, agent: AgentSetup, threads: int) -> Child:
        folder = self._folder
        source = folder / "services" / f"agent_{number}"
        save_without_weights(source, agent.model, agent.tokenizer)
        return Child.start(
            f"generation service of agent {number}",
            [
                *("serve", "generation", "--model", str(source), "--no-weights"),
                *("--agent", str(number), "--threads", str(threads)),
                *("--host", f"unix:{self._sockets / f'agent-{number}.sock'}"),
                *("--run-lease", str(self._setup.config.run_lease)),
                *_compute_in(self._setup.config),
                *(("--traces",) if self._setup.server.traces else ()),
                *self._setup.generation_arguments,
            ],
            log_file=folder / "logs" / f"generation_{number}.log",
            address_file=folder / "services" / f"agent_{number}.json",
            environ=child_environment(threads),
            nursery=self._nursery,
        )

    async def _serve(self, server: Server) -> Endpoint:
        await server.start()
        self._stack.push_async_callback(server.stop, 1.0)
        return Endpoint.of(server.address)

    def _here(self, name: str) -> ServerSettings:
        host = f"unix:{self._sockets / f'{name}.sock'}"
        return ServerSettings.model_validate(
            {"host": host, "metrics_port": None, "traces": self._setup.server.traces}
        )

    def _record_call(self, function: str, ids: tuple[str, ...]) -> None:
        """Write down what is about to be called: it names the call that ended the process."""
        call = {"function": function, "joint_action_ids": list(ids), "time": time.time()}
        text = (json.dumps(call) + "\n").encode()
        file = self._last_call
        if file is None:
            flags = os.O_CREAT | os.O_WRONLY
            file = self._last_call = os.open(self._folder / "last_call.json", flags)
        os.pwrite(file, text, 0)
        os.ftruncate(file, len(text))


def _remove_sockets(folder: Path) -> None:
    """Remove a folder for sockets; nothing else goes."""
    if folder.name.startswith(SOCKETS_PREFIX) and folder.is_dir():
        for path in folder.iterdir():
            if path.is_socket():
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()


def _compute_in(config: MAGRPOConfig) -> tuple[str, ...]:
    """An engine computes as the learner does: by itself in float32 on a CPU, in bf16 elsewhere."""
    if config.compute_dtype != "auto":
        return ("--dtype", config.compute_dtype)
    return ("--dtype", config.wire_dtype) if config.wire_dtype == "float32" else ()


def save_without_weights(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Save what a service needs of a model whose weights will be pushed."""
    from transformers import GenerationConfig

    folder.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.save_pretrained(folder)
    own = model.generation_config
    if own is not None:
        GenerationConfig(
            bos_token_id=own.bos_token_id,
            eos_token_id=own.eos_token_id,
            pad_token_id=own.pad_token_id,
        ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _socket_parent() -> str | None:
    return "/tmp" if len(tempfile.gettempdir()) > LONGEST_SOCKET_FOLDER else None  # noqa: S108
