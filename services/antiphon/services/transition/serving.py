"""Serving a user's transition function, from a script or a command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from antiphon.services.common.hosting import (
    Host,
    host_function,
    log_for_script,
    settings_of_script,
    told_as_one_line,
)
from antiphon.services.common.server import Server, ServerSettings
from antiphon.services.common.user_calls import UserCalls, log_call
from antiphon.services.common.user_functions import RecordCall, TransitionFunction
from antiphon.services.transition.servicer import TransitionServicer
from antiphon.v1.transition_pb2 import DESCRIPTOR
from antiphon.v1.transition_pb2_grpc import add_TransitionServiceServicer_to_server

SERVICE = str(DESCRIPTOR.services_by_name["TransitionService"].full_name)


def transition_server(
    settings: ServerSettings,
    function: TransitionFunction,
    host: Host,
    *,
    call_timeout: float | None = None,
) -> Server:
    """A server of `TransitionService`, to be started on the event loop that runs now.

    Args:
        settings: How it listens.
        function: What writes the prompts.
        host: Its process.
        call_timeout: Seconds that one call of the function may take; None for no limit.
    """
    calls = UserCalls(
        host.main_thread, name=function.name, timeout=call_timeout, on_hung=host.on_hung
    )
    servicer = TransitionServicer(function, calls)
    return Server(
        settings,
        name="transition",
        services=[SERVICE],
        register=partial(add_TransitionServiceServicer_to_server, servicer),
    )


def host_transition(
    function: TransitionFunction, settings: ServerSettings, *, call_timeout: float | None
) -> int:
    """Serves until told to stop, from the main thread; returns the exit code.

    Raises:
        StartError: The server cannot start.
    """
    return host_function(
        settings,
        lambda host: transition_server(settings, function, host, call_timeout=call_timeout),
    )


def serve_transition(
    fn: Callable[..., Any],
    *,
    num_agents: int | None = None,
    call_timeout: float | None = 300.0,
    record_call: RecordCall = log_call,
    **settings: Any,
) -> None:
    """Serves a transition function until SIGTERM or Ctrl-C.

    A whole service::

        from antiphon.services.transition import serve_transition

        def again(prompt, num_agents):
            return [f"{prompt} Write more."] * num_agents

        serve_transition(again, port=50062)

    Called on the main thread, which runs the function.

    Args:
        fn: Takes what it names and returns one prompt per agent; see
            `antiphon.services.common.user_functions.TransitionFunction`.
        num_agents: How many agents there are; None for as many as each joint action has.
        call_timeout: Seconds that one call may take before this process ends with code 70, to be
            replaced; None for no limit.
        record_call: Told the function's name and the joint action's id before each call.
        settings: Fields of `ServerSettings`: host, port, token_file, tls_cert, …

    Raises:
        SystemExit: The server cannot start (code 2; a line says why), or a call took too long (70).
        UserFunctionError: The function has a parameter that nothing fills.
        FieldError: An unknown setting.
    """
    log_for_script()
    function = TransitionFunction(fn, num_agents, record_call=record_call)
    with told_as_one_line():
        code = host_transition(function, settings_of_script(settings), call_timeout=call_timeout)
    if code:
        sys.exit(code)
