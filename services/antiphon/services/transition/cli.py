"""`antiphon serve transition`."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphon.services.common.options import server_command
from antiphon.services.common.server import ServerSettings
from antiphon.services.common.user_calls import log_call
from antiphon.services.common.user_functions import TransitionFunction, load_function
from antiphon.services.transition.serving import host_transition


@server_command
def serve(
    function: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="What writes the next prompts.")
    ],
    *,
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
    """Serve a Python function as a transition service.

    The function gets what it names (prompt, agent_completions, num_agents, batch_item, score, …)
    and returns one prompt per agent, or END to end the branch. In feedback.py:

        from antiphon.services.transition import END

        def again(prompt, agent_completions, num_agents, score):
            if score == 1.0:
                return END("nothing left to improve")
            return tuple(f"{prompt} Improve: {text}" for text in agent_completions)

    Serve it where feedback.py is, and ask whether it keeps the contract:

        antiphon serve transition feedback:again --port 50062

        antiphon check transition 127.0.0.1:50062

    For other machines, with TLS and a token:

        antiphon serve transition feedback:again --host 0.0.0.0 --port 50062

            --tls-cert tls.crt --tls-key tls.key --token-file token
    """
    writes = TransitionFunction(load_function(function), num_agents, record_call=log_call)
    return host_transition(writes, server, call_timeout=call_timeout or None)
