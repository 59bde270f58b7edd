"""Server settings and logging as options of a command."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_type_hints

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from antiphon.clients.types import FieldError
from antiphon.services.common.errors import StartError, UserFunctionError
from antiphon.services.common.logs import LogFormat, configure_logging
from antiphon.services.common.server import ServerSettings

logger = logging.getLogger(__name__)

_PANEL = "Server"


def _configured(log_format: LogFormat) -> LogFormat:
    configure_logging(log_format)
    return log_format


_LOG_FORMAT = Annotated[
    LogFormat,
    typer.Option(
        help="Log lines for people, or JSON for machines.",
        rich_help_panel=_PANEL,
        # First of all: what is wrong with other options is told in that format too.
        is_eager=True,
        callback=_configured,
    ),
]
_LOG_LEVEL = Annotated[
    str, typer.Option(help="debug, info, warning or error.", rich_help_panel=_PANEL)
]
_NO_METRICS = Annotated[
    bool, typer.Option("--no-metrics", help="Serve no /metrics.", rich_help_panel=_PANEL)
]


def server_command(command: Callable[..., int | None]) -> Callable[..., None]:
    """Gives a command that takes `server: ServerSettings` an option for each of its fields.

    Logging is set up before the command runs. What keeps a service from starting (StartError,
    FieldError, a user's function that cannot be called) is one line on standard error and exit
    code 2; otherwise the process ends with the code that the command returns.
    """
    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != "server"
    ]
    options = [_option(name, info) for name, info in ServerSettings.model_fields.items()]
    options += [
        _keyword("no_metrics", _NO_METRICS, False),
        _keyword("log_format", _LOG_FORMAT, "text"),
        _keyword("log_level", _LOG_LEVEL, "info"),
    ]

    @functools.wraps(command)
    def run(
        *args: Any, no_metrics: bool, log_format: LogFormat, log_level: str, **values: Any
    ) -> None:
        settings = {name: values.pop(name) for name in ServerSettings.model_fields}
        if no_metrics:
            settings["metrics_port"] = None
        if log_level.upper() not in logging.getLevelNamesMapping():
            raise typer.BadParameter(f"{log_level!r}; wanted debug, info, warning or error")
        configure_logging(log_format, log_level)
        try:
            code = command(*args, **values, server=ServerSettings(**settings))
        except (StartError, FieldError, UserFunctionError) as error:
            typer.echo(f"antiphon: {error}", err=True)
            raise typer.Exit(2) from error
        except ValidationError as error:
            first = error.errors()[0]
            typer.echo(f"antiphon: {first['loc'][0]}: {first['msg']}", err=True)
            raise typer.Exit(2) from error
        sys.stdout.flush()
        raise typer.Exit(code or 0)

    del run.__wrapped__
    run.__annotations__ = {}
    run.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
    return run


def _option(name: str, info: FieldInfo) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    if bool in (info.annotation, *get_args(info.annotation)) and info.default is not None:
        names = [flag]
    elif bool in get_args(info.annotation):
        names = [f"{flag}/--no-{name.replace('_', '-')}"]
    else:
        names = [flag]
    option = typer.Option(
        *names,
        help=info.description,
        rich_help_panel=_PANEL,
        show_default=info.default not in (None, "", False),
    )
    return _keyword(name, Annotated[info.annotation, option], info.default)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )
