"""`MAGRPOTrainer`, as people who come from CoMLRL know it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.types import FieldError
from antiphon.learner.checkpoints.resume import ended_for_good, open_run
from antiphon.learner.config.checkpoints import checkpoint_settings
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.config.per_agent import check_per_agent, of_agent
from antiphon.learner.control.signals import require_main_thread
from antiphon.learner.data.formatters import Formatter, Prompts
from antiphon.learner.data.tasks import Tasks
from antiphon.learner.distributed.environment import in_job
from antiphon.learner.evaluation.alone import evaluate
from antiphon.learner.evaluation.setup import evaluation_setup
from antiphon.learner.policy.adapters import with_adapter
from antiphon.learner.policy.devices import usable_devices
from antiphon.learner.record.description import described
from antiphon.learner.record.progress import Silent, open_progress
from antiphon.learner.record.run_folder import RunFolder, check_run_name
from antiphon.learner.record.trackers.settings import WandbConfig, read_wandb_config, trackers_of
from antiphon.learner.rollout.centralized import Centralized, CentralizedAdapter
from antiphon.learner.run.agent_models import (
    agent_sources,
    check_vocabulary,
    load_agents,
    model_name,
    one_source,
    resolve_tokenizers,
)
from antiphon.learner.run.arguments import require, require_count
from antiphon.learner.run.launch import train
from antiphon.learner.run.setup import AgentSetup, RunSetup, save_agent, usable_cores
from antiphon.services.common.server_settings import ServerSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

RUNS = "runs"
"""Folder of the working directory that gets a folder for every run."""


class MAGRPOTrainer:
    """Trains several language models together (multi-turn MAGRPO), on one machine or several.

    Example:
        ::

            trainer = MAGRPOTrainer(
                agents=[model_a, model_b],
                tokenizer=tokenizer,
                reward_func=lambda a, b: [float(len(b[0]) > len(a[0]))],
                external_transition=lambda prompt, num_agents: [prompt + " Again:"] * num_agents,
                train_dataset=[{"prompt": "Write a story:"}],
                args=MAGRPOConfig(num_turns=2, num_train_epochs=1),
            )
            trainer.train()
            trainer.save_model("trained")

    With ``args.shared_policy`` one model plays all agents: give it once, as `agent_model` or
    ``agents=[model]``, and `num_agents`. A list of learning rates, models and tokenizers makes
    agents that differ.

    Attributes:
        agents: The models, trained in place; one model once per agent that it plays.
        tokenizers: One per agent; `tokenizer` is the first.
        args: The settings.
        num_agents: N.
        run_directory: Folder of the run; None before `train`.
    """

    config_class: ClassVar[type[MAGRPOConfig]] = MAGRPOConfig
    centralized: ClassVar[bool] = False

    def __init__(
        self,
        agent_model: str | None = None,
        agents: Sequence[PreTrainedModel] | Sequence[str] | None = None,
        num_agents: int = 2,
        tokenizer: PreTrainedTokenizerBase | Sequence[PreTrainedTokenizerBase] | None = None,
        model_config: Mapping[str, Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        reward_func: Callable[..., Any] | None = None,
        reward_processor: Callable[[float], Any] | None = None,
        formatters: Formatter | Sequence[Formatter | None] | None = None,
        external_transition: Callable[..., Any] | None = None,
        wandb_config: Mapping[str, Any] | None = None,
        eval_logger: Callable[..., Any] | None = None,
        eval_aggregator: Callable[..., Any] | None = None,
        args: MAGRPOConfig | None = None,
        *,
        run_directory: str | Path = RUNS,
        run_name: str | None = None,
        generation_addresses: Sequence[Endpoint | str | Sequence[Endpoint | str]] | None = None,
        reward_address: Endpoint | str | None = None,
        transition_address: Endpoint | str | None = None,
        server: ServerSettings | None = None,
        threads: int | None = None,
        centralized_adapter: CentralizedAdapter | None = None,
    ) -> None:
        """Names, order and meaning are CoMLRL's up to `args`; what follows it is given by keyword.

        Args:
            agent_model: Name or path that every agent starts from.
            agents: The agents' models, objects or names, instead.
            num_agents: N where `agent_model` is given; else the length of `agents` counts.
            tokenizer: One for all agents or one per agent; needed where agents are objects.
            model_config: `torch_dtype`, `attn_implementation`, `model_kwargs`, `special_tokens`.
            train_dataset: Rows: a `datasets` dataset or a list of mappings.
            eval_dataset: Rows to evaluate on, like those to train on; None evaluates nothing.
            reward_func: The agents' completions in, one number per joint action out.
            reward_processor: From a raw reward to the one trained on.
            formatters: From a row to an agent's prompt; one for all or one per agent.
            external_transition: From what was answered to the next prompt of each agent.
            wandb_config: How the run appears in Weights & Biases (`WandbConfig`'s fields);
                turns it on unless ``args.trackers`` lists others. ``{"verbose": False}`` hides
                progress.
            eval_logger: Your own metrics of an evaluation, called on the main thread as
                ``eval_logger(agent_completions_turns=..., batch_items=..., prompts=...)``: texts by
                agent, path and turn [N][P][T], and the row and its prompt of each path [P].
            eval_aggregator: ``eval_aggregator(metrics, num_turns=...)``: from what the logger
                returned to numbers by name, which are told under ``eval/``.
            args: The settings.
            run_directory: Folder that gets the run's folder.
            run_name: Name of the run's folder; None takes date and time.
            generation_addresses: Running generation services, one (or a list of replicas) per
                agent; None starts them here.
            reward_address: A running reward service, instead of `reward_func`.
            transition_address: A running transition service, instead of `external_transition`.
            server: How the learner's own service listens; None takes a free port of loopback.
            threads: Cores to share out; None takes all that this process may use.
            centralized_adapter: Of `CentralizedMAGRPOTrainer`: joins the roles' prompts and splits
                the model's answer.

        Raises:
            FieldError: Something is missing, contradicts or is not offered; it says what to give.
        """
        require("args", args, MAGRPOConfig, f"{self.config_class.__name__}(...)")
        require("model_config", model_config, Mapping, "a mapping")
        require("run_directory", run_directory, (str, Path), "a path")
        require("server", server, ServerSettings, "ServerSettings(...)")
        require_count("num_agents", num_agents)
        require_count("threads", threads)
        if run_name is not None:
            check_run_name(run_name, field="run_name")
        evaluation = evaluation_setup(eval_dataset, eval_logger, eval_aggregator)
        wandb = read_wandb_config(wandb_config)
        self.args = self._settings(args)
        self.model_config = dict(model_config or {})
        if self.args.shared_policy or self.centralized:
            source, self.num_agents = one_source(agent_model, agents, num_agents, self.args)
            sources = [source]
        else:
            sources = agent_sources(agent_model, agents, num_agents, self.args)
            self.num_agents = len(sources)
        self.tokenizers = resolve_tokenizers(tokenizer, sources, self.model_config)
        self.tokenizer = self.tokenizers[0]
        reward = _one_of("reward_func", reward_func, "reward_address", reward_address)
        if reward is None:
            raise FieldError("reward_func", "nothing", "a function that scores joint actions")
        transition = _one_of(
            "external_transition", external_transition, "transition_address", transition_address
        )
        prompts = Prompts(
            formatters, self.num_agents, passthrough=self.args.external_prompt_passthrough
        )
        roles = self._roles(centralized_adapter, prompts)
        tasks = Tasks(train_dataset, order=self.args.row_order)
        endpoints = _endpoints(generation_addresses, len(sources))
        self.agents = load_agents(sources, self.model_config)
        players = len(sources) if self.centralized else self.num_agents
        check_per_agent("lora", self.args.lora, players, self.args.policies(players))
        for number, model in enumerate(self.agents):
            if lora := of_agent(self.args.lora, number):
                self.agents[number] = with_adapter(model, lora, agent=number, seed=self.args.seed)
        devices = usable_devices(self.args.agent_devices, len(sources))
        for number, (agent, device) in enumerate(zip(self.agents, devices, strict=True)):
            check_vocabulary(number, agent, self.tokenizers[number])
            agent.to(device)
        if self.args.shared_policy:
            self.agents, self.tokenizers = (
                one * self.num_agents for one in (self.agents, self.tokenizers)
            )
            sources, endpoints = sources * self.num_agents, endpoints * self.num_agents
        self.run_directory: Path | None = None
        self._run_parent, self._run_name = Path(run_directory), run_name
        self._setup = RunSetup(
            config=self.args,
            agents=tuple(
                AgentSetup(model, self.tokenizers[number], model_name(source), endpoints[number])
                for number, (model, source) in enumerate(zip(self.agents, sources, strict=True))
            ),
            tasks=tasks,
            prompts=prompts,
            reward=reward,
            transition=transition,
            open_progress=open_progress if wandb is None or wandb.shows_progress else Silent,
            reward_processor=reward_processor,
            server=server or ServerSettings.model_validate({}),
            threads=threads or usable_cores(),
            trackers=trackers_of(self.args.trackers, wandb),
            wandb=wandb or WandbConfig(),
            centralized=roles,
            evaluation=evaluation,
        )
        self._training = False
        self._run_id: str | None = None

    def _settings(self, args: MAGRPOConfig | None) -> MAGRPOConfig:
        """The settings, which must be of this trainer's algorithm."""
        if args is None:
            return self.config_class()
        wanted = self.config_class.model_fields["advantage_mode"].default
        fits = not self.centralized and args.advantage_mode == wanted
        if self.config_class is MAGRPOConfig or isinstance(args, self.config_class) or fits:
            return args
        raise FieldError(
            "args",
            f"{type(args).__name__} with advantage_mode {args.advantage_mode!r}",
            f"{self.config_class.__name__}(...), for {type(self).__name__}",
        )

    def _roles(self, adapter: CentralizedAdapter | None, prompts: Prompts) -> Centralized | None:
        """What splits joint answers, where this trainer is centralised."""
        if not self.centralized and adapter is None:
            return None
        if not self.centralized or adapter is None:
            raise FieldError(
                "centralized_adapter",
                "nothing" if adapter is None else f"a {type(adapter).__name__}",
                "an adapter such as TaggedAdapter(), and CentralizedMAGRPOTrainer to use it",
            )
        return Centralized(adapter, prompts, self.num_agents)

    def train(
        self,
        resume_from_checkpoint: bool | str | Path | None = None,
        checkpoint_dir: str | Path | None = None,
        checkpoint_interval: int | None = None,
        checkpoint_total_limit: int | None = None,
    ) -> None:
        """Train to the end, on the main thread; SIGINT and SIGTERM belong to it meanwhile.

        A run that is resumed goes on where its checkpoint was taken, and ends with the weights of
        one that was not interrupted; one that has finished only gives the agents their weights.

        Args:
            resume_from_checkpoint: The folder of a run, of a checkpoint, or of several; True or
                ``"latest"`` resumes the newest run in `run_directory` (that of `run_name`, where
                it is given) and begins a new one where there is none.
            checkpoint_dir: Folder for checkpoints instead of the run's own. With it, the two
                settings below mean what they do in CoMLRL: every epoch, and all are kept.
            checkpoint_interval: Epochs between two checkpoints, instead of what `args` says.
            checkpoint_total_limit: Checkpoints to keep, instead of what `args` says.

        Raises:
            FieldError: There is nothing to resume, or a setting differs that must not.
            KeyboardInterrupt: Ctrl-C came; what was under way has been finished in order.
            SystemExit: SIGTERM came (code 143), likewise.
            Exception: The root error of a run that failed.
        """
        require_main_thread()
        if in_job():
            raise FieldError(
                "WORLD_SIZE",
                "a script that torchrun started in several processes",
                "one process; several train what a file says: "
                "torchrun ... -m antiphon.learner run.toml",
            )
        checkpoints = checkpoint_settings(
            self.args,
            directory=checkpoint_dir,
            interval=checkpoint_interval,
            total_limit=checkpoint_total_limit,
        )
        run = open_run(
            self._setup,
            described(self._setup),
            runs=self._run_parent,
            name=self._run_name,
            checkpoints=checkpoints,
            resume_from=resume_from_checkpoint,
            run_id=self._run_id,
        )
        self._run_id = None  # another run is another one, to its services too
        self.run_directory = run.folder.path
        if ended_for_good(run.folder, run.checkpoint):
            raise FieldError(
                "resume_from_checkpoint",
                f"run {run.folder.run_id}, which has finished and kept no checkpoint",
                "a run with a checkpoint, which the agents could get their weights from",
            )
        self._training = True
        try:
            train(
                self._setup,
                run.folder,
                resume_with=f'trainer.train(resume_from_checkpoint="{run.folder.path}")',
                checkpoints=checkpoints,
                resume=run.checkpoint,
                notes=run.notes,
            )
        finally:
            self._training = False

    def evaluate(self, num_eval_samples: int | None = None) -> dict[str, float]:
        """Evaluate the agents as they are, before or after `train`, which evaluates by itself.

        Services are started and ended as in `train`, the agents are left as they are, and nothing
        is recorded. Its random numbers are the same every time, so what comes before and after
        training can be compared.

        Args:
            num_eval_samples: Most tasks, the first ones of `eval_dataset`; None takes
                ``args.eval_num_samples``.

        Returns:
            Figures by name, such as ``eval/turn_1/reward_mean``; empty without tasks.

        Raises:
            FieldError: `num_eval_samples` is no number of tasks.
            RuntimeError: It is called while `train` runs.
            Exception: The root error of an evaluation that failed.
        """
        samples = self.args.eval_num_samples if num_eval_samples is None else num_eval_samples
        if type(samples) is not int or samples < 0:
            raise FieldError("num_eval_samples", repr(samples), "a whole number, 0 or more")
        require_main_thread()
        if self._training:
            raise RuntimeError(
                "evaluate() was called while train() runs; eval_interval evaluates meanwhile, and "
                "`antiphon evaluate ADDRESS` asks for an evaluation between two batches"
            )
        if self._setup.evaluation is None or samples == 0:
            return {}
        with self._evaluation_folder() as folder:
            return evaluate(self._setup, folder, samples)

    @contextmanager
    def _evaluation_folder(self) -> Iterator[RunFolder]:
        """The run's folder; before there is one, a passing one of the run that is to come.

        Services that are given by address belong to a run for a while, hence one id for both.
        """
        if self.run_directory is not None:
            yield RunFolder.open(self.run_directory)
            return
        with TemporaryDirectory(prefix="antiphon-evaluation-") as parent:
            folder = RunFolder.create(Path(parent), self._run_name, run_id=self._run_id)
            self._run_id = folder.run_id
            yield folder

    def save_model(self, output_dir: str | Path, *, merge_adapters: bool = False) -> None:
        """Save every agent with its tokenizer in `output_dir`/agent_0, agent_1, ...

        Each folder loads with `AutoModelForCausalLM.from_pretrained`. A model that plays several
        agents is saved once, in `agent_0`. Of an agent that is trained through LoRA the adapter is
        saved, to be loaded with `PeftModel.from_pretrained` onto its base.

        Args:
            output_dir: Made where it is missing.
            merge_adapters: Save models with their adapters in their weights too, in
                `agent_0/merged`, ..., rounded to the model's number format.
        """
        for number, *_ in self._setup.policies:
            folder = Path(output_dir) / f"agent_{number}"
            save_agent(folder, self.agents[number], self.tokenizers[number], merge=merge_adapters)


def _one_of(
    name: str,
    function: Callable[..., Any] | None,
    address_name: str,
    address: Endpoint | str | None,
) -> Callable[..., Any] | Endpoint | None:
    if function is not None and address is not None:
        raise FieldError(name, f"a function, and {address_name} too", "one of them")
    if function is not None and not callable(function):
        raise FieldError(name, type(function).__name__, "a function")
    return function if address is None else Endpoint.of(address)


def _endpoints(
    addresses: Sequence[Endpoint | str | Sequence[Endpoint | str]] | None, num_agents: int
) -> list[tuple[Endpoint, ...]]:
    """Replicas of each agent; none where they are started here."""
    if addresses is None:
        return [()] * num_agents
    if isinstance(addresses, str) or len(addresses) != num_agents:
        raise FieldError(
            "generation_addresses",
            repr(addresses),
            f"a list of {num_agents}, one per agent, each an address or a list of replicas",
        )
    return [
        tuple(
            Endpoint.of(one) for one in ([entry] if isinstance(entry, (str, Endpoint)) else entry)
        )
        for entry in addresses
    ]
