"""Serving a user's reward function, from a script or a command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from antiphon.clients.types import RewardInfo
from antiphon.services.common.hosting import (
    Host,
    host_function,
    log_for_script,
    settings_of_script,
    told_as_one_line,
)
from antiphon.services.common.server import Server, ServerSettings
from antiphon.services.common.user_calls import UserCalls, log_call
from antiphon.services.common.user_functions import RecordCall, RewardFunction
from antiphon.services.reward.servicer import RewardServicer
from antiphon.v1.reward_pb2 import DESCRIPTOR
from antiphon.v1.reward_pb2_grpc import add_RewardServiceServicer_to_server

SERVICE = str(DESCRIPTOR.services_by_name["RewardService"].full_name)


def reward_server(
    settings: ServerSettings,
    function: RewardFunction,
    host: Host,
    *,
    call_timeout: float | None = None,
    max_batch_size: int | None = None,
    version: str = "",
    value_range: tuple[float, float] | None = None,
) -> Server:
    """A server of `RewardService`, to be started on the event loop that runs now.

    Args:
        settings: How it listens.
        function: What scores.
        host: Its process.
        call_timeout: Seconds that one call of the function may take; None for no limit.
        max_batch_size: Most joint actions that `GetRewardInfo` asks for in one Score call (0: no
            limit); None for those of one call of the function, whose failure costs no others then.
        version: What `GetRewardInfo` says, for people.
        value_range: Smallest and largest reward, where known.
    """
    calls = UserCalls(
        host.main_thread, name=function.name, timeout=call_timeout, on_hung=host.on_hung
    )
    info = RewardInfo(
        name=function.name,
        version=version,
        value_min=value_range[0] if value_range else None,
        value_max=value_range[1] if value_range else None,
        max_batch_size=function.batch_size if max_batch_size is None else max_batch_size,
        max_concurrent_calls=1,  # of the function, which has the main thread to itself
    )
    servicer = RewardServicer(function, calls, info)
    return Server(
        settings,
        name="reward",
        services=[SERVICE],
        register=partial(add_RewardServiceServicer_to_server, servicer),
    )


def host_reward(
    function: RewardFunction,
    settings: ServerSettings,
    *,
    call_timeout: float | None,
    version: str = "",
    value_range: tuple[float, float] | None = None,
) -> int:
    """Serves until told to stop, from the main thread; returns the exit code.

    Raises:
        StartError: The server cannot start.
    """
    return host_function(
        settings,
        lambda host: reward_server(
            settings,
            function,
            host,
            call_timeout=call_timeout,
            version=version,
            value_range=value_range,
        ),
    )


def serve_reward(
    fn: Callable[..., Any],
    *,
    num_agents: int | None = None,
    batch_size: int = 1,
    call_timeout: float | None = 300.0,
    version: str = "",
    value_range: tuple[float, float] | None = None,
    record_call: RecordCall = log_call,
    **settings: Any,
) -> None:
    """Serves a reward function until SIGTERM or Ctrl-C.

    A whole service::

        from antiphon.services.reward import serve_reward

        serve_reward(lambda first, second: [len(second[0]) / (len(first[0]) + 1)], port=50061)

    Called on the main thread, which runs the function.

    Args:
        fn: Takes each agent's completions as a list and returns one number per joint action; see
            `antiphon.services.common.user_functions.RewardFunction`.
        num_agents: How many agents there are; None for as many as each joint action has.
        batch_size: Most joint actions in one call of `fn`.
        call_timeout: Seconds that one call may take before this process ends with code 70, to be
            replaced; None for no limit.
        version: Told to callers, for people.
        value_range: Smallest and largest reward, told to callers.
        record_call: Told the function's name and the joint actions' ids before each call.
        settings: Fields of `ServerSettings`: host, port, token_file, tls_cert, …

    Raises:
        SystemExit: The server cannot start (code 2; a line says why), or a call took too long (70).
        UserFunctionError: The function has parameters that nothing fills.
        FieldError: An unknown setting.
    """
    log_for_script()
    function = RewardFunction(fn, num_agents, batch_size, record_call=record_call)
    with told_as_one_line():
        code = host_reward(
            function,
            settings_of_script(settings),
            call_timeout=call_timeout,
            version=version,
            value_range=value_range,
        )
    if code:
        sys.exit(code)
