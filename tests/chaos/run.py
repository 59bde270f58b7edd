"""A two-agent training as separate processes, calm or while a plan of faults is done to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.chaos.faults import Faults, Outcome
from tests.chaos.plan import Fault
from tests.chaos.programs import Births, Program, Traces, services, traces
from tests.chaos.proxy import Direction
from tests.support.certificates import certificate, certificate_authority
from tests.support.processes import QUIET

from antiphon.clients.endpoint import Endpoint, Tls
from antiphon.clients.generation import GenerationClient
from antiphon.clients.types import LoadedWeights

PROMPTS = ["a red cat", "two dog b", "green c sings", "one blue d", "three cat e"]
RUN = """
[run]
name = "run"
directory = "{folder}/runs"
threads = 1

[magrpo]
num_turns = 2
num_train_epochs = {epochs}
num_generations = 2
max_new_tokens = 5
agent_learning_rate = 1e-2
temperature = 1.0
top_p = 0.9
top_k = 20
early_termination_threshold = "none"
rollout_buffer_size = 4
train_batch_size = 3
rollout_batch_size = 2
wire_dtype = "float32"
logging_steps = 1
checkpoint_every_prompts = 1
seed = 11
generate_timeout = 4
score_timeout = 4
transition_timeout = 4
push_timeout = 4
control_timeout = 4

[magrpo.retry]
attempts = 1000
deadline_attempts = 1000
initial_backoff = 0.05
max_backoff = 0.5

[[agents]]
model = "{models[0]}"
addresses = ["{agent_0}"]
[[agents]]
model = "{models[1]}"
addresses = ["{agent_1}"]
[reward]
address = "{reward}"
[transition]
address = "{transition}"

[dataset]
prompts = {prompts}

[credentials]
tls = {{ ca = "{ca}" }}
token_file = "{token_file}"
"""
RESUMABLE = {-9: "killed", 143: "terminated"}
IDLE_SECONDS = 20.0
LOOK_SECONDS = 0.1


@dataclass
class Ended:
    """What is known of a run once it has ended.

    Attributes:
        folder: The run's folder.
        outcomes: The faults, in order.
        lives: How often the learner was started.
        passed: Bytes by service and direction.
        loaded: What each agent's service had loaded at the end.
        before, after: What each service held before the learner came and after it had gone, of
            those that were not started again in between.
        memory: Bytes of memory of each process of a service, in order: a look after each fault, and
            one at the end.
        learner_memory: The most that a process of the learner held.
        codes: How the services ended when they were told to.
        left: Processes that outlived them.
        temporary: What is left in the folder for temporary files.
    """

    folder: Path
    outcomes: list[Outcome] = field(default_factory=list)
    lives: int = 0
    passed: dict[str, dict[Direction, int]] = field(default_factory=dict)
    loaded: list[LoadedWeights] = field(default_factory=list)
    before: dict[int, Traces] = field(default_factory=dict)
    after: dict[int, Traces] = field(default_factory=dict)
    memory: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    learner_memory: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    temporary: list[str] = field(default_factory=list)

    @property
    def home(self) -> Path:
        """What holds the folder of runs."""
        return self.folder.parents[1]


class World:
    """The services of one run and its learner.

    Args:
        folder: Of everything.
        births: Forks the processes.
        models: The agents' models.
        epochs: Of the run.
    """

    def __init__(self, folder: Path, births: Births, models: Sequence[Path], epochs: int) -> None:
        folder.mkdir()
        self._folder = folder
        self._temporary = folder / "tmp"
        self._temporary.mkdir()
        ca = certificate_authority(folder)
        self._token_file = folder / "token"
        self._token_file.write_text("only the learner has it")
        environ = {**QUIET, "TMPDIR": str(self._temporary)}
        self.services = services(
            births, folder, models, certificate(folder, "server", ca), self._token_file, environ
        )
        self._file = folder / "run.toml"
        self.learner = Program(
            "learner",
            ("train", str(self._file), "--resume", "latest"),
            births,
            folder,
            environ,
        )
        self._ca = ca.cert
        self._models = models
        self._epochs = epochs
        self.ended = Ended(folder / "runs" / "run")

    async def run(self, faults: Sequence[Fault] = ()) -> Ended:
        """Train to the end while the faults are done; then end everything and look what is left."""
        family = _descendants()
        async with self._served():
            self._write_run()
            self.ended.before = {s.pid: traces(s.pid) for s in self.services.values()}
            harm = asyncio.create_task(self._do(faults))
            look = asyncio.create_task(self._watch_learner())
            try:
                await self._train()
                if not harm.done():
                    done = len(self.ended.outcomes)
                    raise AssertionError(f"the run ended after {done} of {len(faults)} faults")
                await harm
            finally:
                for task in (harm, look):
                    task.cancel()
                await asyncio.gather(harm, look, return_exceptions=True)
            self.ended.passed = {n: dict(s.proxy.passed) for n, s in self.services.items()}
            self.ended.loaded = [await self._loaded(f"agent-{agent}") for agent in range(2)]
            await self._look_after()
        self.ended.left = sorted(_descendants() - family)
        return self.ended

    @asynccontextmanager
    async def _served(self) -> AsyncIterator[None]:
        for service in self.services.values():
            await service.proxy.start()
        try:
            async with asyncio.TaskGroup() as group:
                for service in self.services.values():
                    group.create_task(service.start())
            yield
            for name, service in self.services.items():
                self.ended.codes[name] = await service.stop()
            self.ended.temporary = sorted(str(p) for p in self._temporary.rglob("*"))
        finally:
            for program in (*self.services.values(), self.learner):
                if program.born is not None and program.born.poll() is None:
                    program.signal(9)
                    await program.ended()
            for service in self.services.values():
                await service.proxy.close()

    async def _train(self) -> None:
        """Start the learner, again after every fault that ends it, until it has trained."""
        while True:
            await self.learner.spawn()
            self.ended.lives = self.learner.lives
            code = await self.learner.ended()
            if code == 0:
                return
            assert code in RESUMABLE, f"the learner ended with {code}\n{self.learner.log}"

    async def _watch_learner(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.learner.born is None:
                continue
            with contextlib.suppress(psutil.NoSuchProcess):  # between two lives
                rss = psutil.Process(self.learner.pid).memory_info().rss
                self.ended.learner_memory = max(self.ended.learner_memory, rss)

    async def _do(self, faults: Sequence[Fault]) -> None:
        does = Faults(
            self.services,
            self.learner,
            ca=self._ca.read_bytes(),
            learner_address=self._learner_address,
        )
        for fault in faults:
            self.ended.outcomes.append(await does.do(fault))
            self._look_at_memory()

    def _look_at_memory(self) -> None:
        for name, service in self.services.items():
            rss = psutil.Process(service.pid).memory_info().rss
            self.ended.memory.setdefault((name, service.pid), []).append(rss)

    def _learner_address(self) -> str | None:
        file = self.ended.folder / "learner.json"
        if not file.exists():
            return None
        written = json.loads(file.read_text())
        return str(written["address"]) if written["pid"] == self.learner.pid else None

    async def _loaded(self, name: str) -> LoadedWeights:
        endpoint = Endpoint(
            address=self.services[name].proxy.address,
            tls=Tls(ca=self._ca),
            token_file=self._token_file,
        )
        async with GenerationClient(endpoint) as client:
            return (await client.get_model_info(timeout=20)).loaded

    async def _look_after(self) -> None:
        """Wait until the services hold no connection any more, and note what they hold."""
        pids = [service.pid for service in self.services.values()]
        async with asyncio.timeout(IDLE_SECONDS):
            while any(traces(pid).connections for pid in pids):
                await asyncio.sleep(0.05)
        self.ended.after = {pid: traces(pid) for pid in pids}
        self._look_at_memory()

    def _write_run(self) -> None:
        addresses = {
            name.replace("-", "_"): service.proxy.address for name, service in self.services.items()
        }
        self._file.write_text(
            RUN.format(
                folder=self._folder,
                models=self._models,
                epochs=self._epochs,
                prompts=json.dumps(PROMPTS),
                ca=self._ca,
                token_file=self._token_file,
                **addresses,
            )
        )


def _descendants() -> set[int]:
    """Ids of the processes that descend from this one and run."""
    family = psutil.Process().children(recursive=True)
    return {process.pid for process in family if process.status() != psutil.STATUS_ZOMBIE}
