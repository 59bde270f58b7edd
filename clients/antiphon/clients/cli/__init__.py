"""The command line `antiphon`: its own commands, and those that other portions add.

A portion adds a command as an entry point: in the group ``antiphon.commands`` for
``antiphon NAME``, in ``antiphon.serve`` for ``antiphon serve NAME``. It names a `typer.Typer` or a
function, and is imported when the command is used, so that ``--help`` stays quick and a service
without torch never imports it.
"""

from __future__ import annotations

import os
import signal

if os.getpid() == 1:
    # The kernel keeps signals without a handler from the first process of a container, which would
    # then be killed at the end of its grace period. Until a server takes SIGTERM there is nothing
    # to end in order, and what is imported below takes its time.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))

from importlib.metadata import version
from typing import Annotated

import typer

from antiphon.clients.cli.lazy import LazyGroup

_SETTINGS = {"help_option_names": ["-h", "--help"]}


class Commands(LazyGroup):
    """The commands right below `antiphon`."""

    entry_points_group = "antiphon.commands"


class Servers(LazyGroup):
    """The services below `antiphon serve`."""

    entry_points_group = "antiphon.serve"


app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings=_SETTINGS,
)
_serve = typer.Typer(
    cls=Servers, rich_markup_mode=None, no_args_is_help=True, context_settings=_SETTINGS
)
app.add_typer(_serve, name="serve")


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"antiphon {version('antiphon')}")
        raise typer.Exit


@app.callback()
def antiphon(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Train a group of language models that answer each other, as gRPC services.

    Train on this machine, everything started and stopped for you:
      antiphon train run.toml
      antiphon train run.toml --set magrpo.num_turns=3 --dry-run

    Or process by process, as on a cluster:
      antiphon serve generation --model NAME --agent 0 --port 50051
      antiphon serve reward my_rewards:length_ratio --port 50061
      antiphon check reward localhost:50061
      antiphon train run.toml        # with these addresses in run.toml
      antiphon watch localhost:50070

    Every command has --help of its own.
    """


@_serve.callback()
def serve() -> None:
    """Serve one part of a run: a model, a reward or a transition.

    Examples:
      antiphon serve generation --model HuggingFaceTB/SmolLM2-135M-Instruct --port 50051
      antiphon serve reward my_rewards:length_ratio --port 50061
      antiphon serve transition my_rewards:length_feedback --port 50062

    A service listens on loopback until told otherwise, says on /metrics what it does, and ends
    in an orderly way on SIGTERM or Ctrl-C.
    """


def main() -> None:
    """Run the command line."""
    app(prog_name="antiphon")
