"""`antiphon serve reward`."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphon.services.common.options import server_command
from antiphon.services.common.server import ServerSettings
from antiphon.services.common.user_calls import log_call
from antiphon.services.common.user_functions import RewardFunction, load_function
from antiphon.services.reward.serving import host_reward


@server_command
def serve(
    function: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="What scores.")],
    *,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Most joint actions in one call of the function.")
    ] = 1,
    num_agents: Annotated[
        int | None, typer.Option(min=1, help="Agents; by default as many as each request has.")
    ] = None,
    call_timeout: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds that one call may take before the service ends with code 70, to be "
            "replaced; 0 for no limit.",
        ),
    ] = 300.0,
    server: ServerSettings,
) -> int:
    """Serve a Python function as a reward service.

    The function gets each agent's completions as a list and returns one number per joint action.
    In length_ratio.py:

        def reward(first, second):
            return tuple(len(b) / (len(a) + 1) for a, b in zip(first, second))

    Serve it where length_ratio.py is, and ask whether it keeps the contract:

        antiphon serve reward length_ratio:reward --port 50061

        antiphon check reward 127.0.0.1:50061

    Eight joint actions a call, for a function that works on batches:

        antiphon serve reward judge:score --batch-size 8 --port 50061

    For other machines, with TLS and a token:

        antiphon serve reward judge:score --host 0.0.0.0 --port 50061

            --tls-cert tls.crt --tls-key tls.key --token-file token
    """
    scores = RewardFunction(load_function(function), num_agents, batch_size, record_call=log_call)
    return host_reward(scores, server, call_timeout=call_timeout or None)
