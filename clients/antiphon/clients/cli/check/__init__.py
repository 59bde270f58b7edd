"""Check whether a reward or transition service keeps the contract."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.clients.cli.check.cases import Cases
from antiphon.clients.cli.check.probe import Probe, Subject
from antiphon.clients.cli.check.report import print_report
from antiphon.clients.cli.check.reward import RewardSubject
from antiphon.clients.cli.check.suite import check_service
from antiphon.clients.cli.check.transition import TransitionSubject
from antiphon.clients.cli.options import endpoint_command
from antiphon.clients.endpoint import Endpoint
from antiphon.clients.types import FieldError

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

NumAgents = Annotated[int, typer.Option(min=1, help="How many agents a joint action has.")]
NumTurns = Annotated[
    int, typer.Option(min=1, help="Turns that are tried; later ones carry a history.")
]
Item = Annotated[
    str | None,
    typer.Option(
        help="The task item: a JSON object, or @FILE with one. Give a row of your dataset where "
        "the service reads columns.",
    ),
]
Timeout = Annotated[
    float, typer.Option(min=0.1, help="Seconds within which every call must be answered.")
]


@app.callback()
def check() -> None:
    """Check whether a reward or transition service keeps the contract.

    Examples:
      antiphon check reward localhost:50061
      antiphon check transition localhost:50062 --num-agents 3
    """


@app.command()
@endpoint_command
def reward(
    endpoint: Endpoint,
    num_agents: NumAgents = 2,
    num_turns: NumTurns = 2,
    item: Item = None,
    timeout: Timeout = 30.0,
) -> None:
    """Check a reward service.

    Examples:
      antiphon check reward localhost:50061
      antiphon check reward localhost:50061 --item '{"prompt": "Describe a city:"}'
      antiphon check reward localhost:50061 --item @row.json --num-agents 3 --timeout 120

    The service is called with made-up joint actions: one, several, the same again, empty, long,
    unusual and malformed ones. The exit code is 1 when any check fails.
    """
    _run(endpoint, RewardSubject, num_agents, num_turns, item, timeout)


@app.command()
@endpoint_command
def transition(
    endpoint: Endpoint,
    num_agents: NumAgents = 2,
    num_turns: NumTurns = 2,
    item: Item = None,
    timeout: Timeout = 30.0,
) -> None:
    """Check a transition service.

    Examples:
      antiphon check transition localhost:50062
      antiphon check transition localhost:50062 --num-agents 3 --num-turns 4

    The service is called with made-up joint actions and scores, as for `antiphon check reward`.
    Every answer must hold one prompt per agent, none of them empty, or end the branch. The exit
    code is 1 when any check fails.
    """
    _run(endpoint, TransitionSubject, num_agents, num_turns, item, timeout)


def _run(
    endpoint: Endpoint,
    subject: Callable[[int], Subject],
    num_agents: int,
    num_turns: int,
    item: str | None,
    timeout: float,
) -> None:
    cases = Cases(num_agents, num_turns, _item(item))

    async def run() -> bool:
        async with Probe(endpoint, subject(num_agents), timeout) as probe:
            findings = await check_service(probe, cases)
        return print_report(endpoint.address, findings)

    if not asyncio.run(run()):
        raise typer.Exit(1)


def _item(given: str | None) -> Mapping[str, Any]:
    if given is None:
        return {"prompt": "Describe a city in the clouds:"}
    if given.startswith("@"):
        path = Path(given[1:])
        if not path.is_file():
            raise FieldError("--item", f"the file {path}, which is not there", "a JSON file")
        given = path.read_text()
    try:
        value = json.loads(given)
    except ValueError as error:
        raise FieldError("--item", repr(given[:60]), f"a JSON object ({error})") from error
    if not isinstance(value, dict):
        raise FieldError("--item", f"a JSON {type(value).__name__}", "a JSON object")
    return value
