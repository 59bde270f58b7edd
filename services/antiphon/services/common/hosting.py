"""A process that serves a user's function: gRPC beside, the function on the main thread."""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from antiphon.services.common.allocator import keep_no_freed_blocks
from antiphon.services.common.errors import StartError, UserFunctionTimeoutError
from antiphon.services.common.garbage import short_collections
from antiphon.services.common.logs import configure_logging
from antiphon.services.common.main_thread import MainThread
from antiphon.services.common.server import Server, ServerSettings
from antiphon.services.common.settings import check_unknown
from antiphon.services.common.stopping import StopSignals, run_until_stopped

EXIT_HUNG = 70
"""Exit code of a service whose function did not return in time."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Host:
    """What a servicer of user functions needs of its process.

    Attributes:
        main_thread: Runs the function.
        on_hung: To be told when the function did not return in time.
    """

    main_thread: MainThread
    on_hung: Callable[[UserFunctionTimeoutError], None]


def host_function(settings: ServerSettings, make_server: Callable[[Host], Server]) -> int:
    """Serves on a thread beside the calling one, which runs the user's function.

    Called on the main thread; returns once the server was told to stop and has ended.

    Args:
        settings: How it listens.
        make_server: Makes the server, on the event loop.

    Returns:
        The exit code: 0, or `EXIT_HUNG`.

    Raises:
        StartError: The server cannot start.
    """
    keep_no_freed_blocks()
    # A crash inside native code then tells where, after the line that names the call.
    if not faulthandler.is_enabled() and sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
    # A fork would copy gRPC's locks but not its threads, and hang: user code gets spawn.
    if multiprocessing.get_start_method(allow_none=True) is None:
        multiprocessing.set_start_method("spawn")
    main_thread = MainThread(
        stuck_seconds=min(2.0, settings.grace_seconds / 10), stuck_exit_code=EXIT_HUNG
    )
    with StopSignals(exit_with_parent=settings.exit_with_parent) as stop:

        def on_hung(error: UserFunctionTimeoutError) -> None:
            logger.error("%s; this service ends, to be replaced", error)
            stop.request(f"{error.function} hangs", EXIT_HUNG)

        async def serve() -> int:
            server = make_server(Host(main_thread, on_hung))
            with short_collections():
                return await run_until_stopped(server, stop)

        return main_thread.serve(serve)


def settings_of_script(values: dict[str, Any]) -> ServerSettings:
    """Server settings from the keywords of `serve_reward` and `serve_transition`.

    Raises:
        FieldError: An unknown keyword, with the nearest known one.
    """
    check_unknown(ServerSettings, values)
    return ServerSettings(**values)


@contextmanager
def told_as_one_line() -> Iterator[None]:
    """A server that cannot start ends the script as `antiphon serve` ends: a line, and code 2."""
    try:
        yield
    except StartError as error:
        sys.stderr.write(f"antiphon: {error}\n")
        raise SystemExit(2) from error


def log_for_script() -> None:
    """Sets logging up where the script has not."""
    if not logging.getLogger().handlers:
        configure_logging()
