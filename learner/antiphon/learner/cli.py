"""`antiphon train`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.learner.config.run_file import RunConfig, load_run_config
from antiphon.learner.distributed.environment import in_job
from antiphon.learner.run.children import ChildError
from antiphon.learner.run.nursery import warm_up
from antiphon.learner.run.watchdog import NoProgressError
from antiphon.learner.weights.replicas import RunSupersededError, ServiceTakenError
from antiphon.services.common.errors import StartError, UserFunctionError
from antiphon.services.common.logs import configure_logging
from antiphon.services.common.settings import asked_for


def train(
    file: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="The run.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a setting of the file; may be repeated."
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|CHECKPOINT",
            help='Go on with a run: its folder, that of one of its checkpoints, or "latest".',
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show the resolved run and its size, check everything but a checkpoint, train "
            "nothing.",
        ),
    ] = False,
) -> None:
    """Train a group of models as a TOML file says.

    A run.toml that trains two agents for two turns on this machine:

        [magrpo]
        num_turns = 2
        early_termination_threshold = 0.9   # no second turn where the mean reward is above it
        num_train_epochs = 2
        max_new_tokens = 64

        [[agents]]                    # one per agent, agent 0 first
        model = "HuggingFaceTB/SmolLM2-135M-Instruct"
        [[agents]]
        model = "HuggingFaceTB/SmolLM2-135M-Instruct"

        [reward]
        function = "tasks:reward"     # def reward(first, second): in tasks.py
        [transition]
        function = "tasks:feedback"   # writes the prompts of the next turn

        [dataset]
        path = "prompts.jsonl"        # rows with a "prompt"

    Services that are not named are started here and end with the run. To use services that run
    elsewhere, name them: addresses = ["host:50051"] in [[agents]], address = "host:50061" in
    [reward] and [transition].

    Examples:
        antiphon train run.toml --dry-run
        antiphon train run.toml
        antiphon train run.toml --set magrpo.num_turns=3 --set agents.0.device=cuda:0
        ANTIPHON_MAGRPO__SEED=7 antiphon train run.toml
        antiphon train run.toml --resume runs/20250131-120000

    The environment wins over the file, --set over both; where TOML has no value, "none" turns a
    setting off. The run folder (in runs/) gets settings, metrics, rollouts, trained models and
    SUMMARY.md. Ctrl-C or SIGTERM ends the run in order, with a checkpoint, a second one at once.
    A run that ended early, or was killed, goes on with --resume; "latest" is the newest one.

    Models that one process cannot hold are trained by several, on one node or many; [sharding] says
    how they hold them:
        torchrun --nproc-per-node 8 -m antiphon.learner run.toml

    Exit codes: 0 trained, or stopped by StopRun; 1 failed; 130 Ctrl-C; 143 SIGTERM.
    """
    sources: Any = {"overrides": overrides or (), "environ": os.environ}
    if asked_for("run.log_format", file=file, **sources) == "json":
        configure_logging("json")  # what is wrong with the settings is for machines too
    config = load_run_config(file, **sources)
    configure_logging(config.run.log_format, config.run.log_level)
    try:
        if dry_run:
            _show(config)
            if resume is not None:
                typer.echo("--resume was not looked at: this is what a new run needs", err=True)
        elif in_job():
            from antiphon.learner.distributed.run import take_part

            take_part(config, resume=resume)
        else:
            if not all(agent.addresses for agent in config.players):
                warm_up()
            from antiphon.learner.run.toml_run import train_from_config

            set_again = [word for override in overrides or () for word in ("--set", override)]
            command = shlex.join(["antiphon", "train", str(file), *set_again])
            train_from_config(config, resume=resume, command=command)
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error
    except (ChildError, NoProgressError, RunSupersededError, ServiceTakenError) as error:
        typer.echo(f"antiphon: {error}", err=True)
        raise typer.Exit(1) from error
    except (StartError, UserFunctionError) as error:
        if isinstance(error, UserFunctionError) and error.trace:
            typer.echo(error.trace, err=True)
        typer.echo(f"antiphon: {error}", err=True)
        raise typer.Exit(1) from error


def _show(config: RunConfig) -> None:
    from rich.console import Console

    from antiphon.learner.run.dry_run import inspect_run
    from antiphon.learner.run.dry_run_view import show_dry_run

    found = inspect_run(config)
    show_dry_run(Console(), config, found)
    if not found.ok:
        raise typer.Exit(1)
