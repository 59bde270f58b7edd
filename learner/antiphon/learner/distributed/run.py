"""`antiphon train` as one rank of a job."""

from __future__ import annotations

from torch.distributed.elastic.multiprocessing.errors import record

from antiphon.clients.types import FieldError
from antiphon.learner.config.per_agent import of_agent
from antiphon.learner.config.run_file import RunConfig
from antiphon.learner.distributed.channel import END
from antiphon.learner.distributed.job import Job
from antiphon.learner.distributed.leader import Leader
from antiphon.learner.distributed.source import ModelSource
from antiphon.learner.distributed.worker import serve
from antiphon.learner.policy.devices import OFFLOAD
from antiphon.learner.run.nursery import warm_up
from antiphon.learner.run.toml_run import train_from_config


@record
def take_part(config: RunConfig, *, resume: str | None) -> None:
    """Drive the run as rank 0, or hold a part of its policies.

    Args:
        config: The run.
        resume: The run or checkpoint to go on from; None begins anew.

    Raises:
        Exception: As `train_from_config`, in rank 0; elsewhere what a command failed with.
    """
    job = Job.join()
    if job.rank > 0:
        serve(job)
    else:
        with job.telling_errors():
            _lead(job, config, resume)
        job.leave()


def _lead(job: Job, config: RunConfig, resume: str | None) -> None:
    if not all(agent.addresses for agent in config.players):
        warm_up()
    try:
        _check(config)
        leader = Leader(job, _sources(config), config.sharding)
    except Exception:
        job.channel.say(END)
        raise
    try:
        train_from_config(config, resume=resume, ranks=leader)
    finally:
        leader.close()


def _check(config: RunConfig) -> None:
    """Refuse what several processes do not do.

    Raises:
        FieldError: Names the setting.
    """
    devices = config.magrpo.reference_devices
    given = [devices] if isinstance(devices, str) else devices or ()
    for device in given:
        if device != OFFLOAD:
            raise FieldError(
                "magrpo.reference_devices",
                f"{device!r}, in a learner of several processes",
                f'"{OFFLOAD}", to hold each rank\'s part in main memory, or nothing: references '
                "are parted over the ranks of their policies",
            )


def _sources(config: RunConfig) -> dict[int, ModelSource]:
    """The model of each policy, by its first agent."""
    policies = config.magrpo.policies(len(config.players))
    return {agents[0]: _source(config, agents[0]) for agents in policies}


def _source(config: RunConfig, agent: int) -> ModelSource:
    settings = config.players[agent]
    return ModelSource(
        agent=agent,
        model=settings.model,
        gguf_file=settings.gguf_file,
        lora=of_agent(config.training.lora, agent),
        seed=config.magrpo.seed,
    )
