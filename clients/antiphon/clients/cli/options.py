"""What every command that calls a service has: its address, TLS and token."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from pydantic import ValidationError

from antiphon.clients.endpoint import Endpoint, Tls, check_address

_ADDRESS = Annotated[
    str, typer.Argument(help='Where it is: "host:port", "unix:/path" or "dns:///name:port".')
]
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "tls_ca": (
        Annotated[
            Path | None, typer.Option(help="CA that signed the server's certificate; turns TLS on.")
        ],
        None,
    ),
    "tls_cert": (
        Annotated[Path | None, typer.Option(help="Your certificate, for mutual TLS.")],
        None,
    ),
    "tls_key": (Annotated[Path | None, typer.Option(help="Your key, for mutual TLS.")], None),
    "tls_server_name": (
        Annotated[
            str | None,
            typer.Option(help="Name in the server's certificate, where not the address."),
        ],
        None,
    ),
    "token_file": (Annotated[Path | None, typer.Option(help="File with the bearer token.")], None),
    "insecure": (
        Annotated[
            bool, typer.Option("--insecure", help="Send the token in plain text off loopback.")
        ],
        False,
    ),
}


def endpoint_command(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command that takes `endpoint: Endpoint` an argument and options that describe it."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != "endpoint"
    ]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in _OPTIONS.items()
    ]
    where = inspect.Parameter(
        "address", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=_ADDRESS
    )

    @functools.wraps(command)
    def run(address: str, **values: Any) -> None:
        given = {name: values.pop(name, default) for name, (_, default) in _OPTIONS.items()}
        command(endpoint=endpoint(address, **given), **values)

    del run.__wrapped__
    run.__annotations__ = {}
    run.__signature__ = inspect.Signature([where, *own, *options])  # type: ignore[attr-defined]
    return run


def endpoint(
    address: str,
    *,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_server_name: str | None,
    token_file: Path | None,
    insecure: bool,
) -> Endpoint:
    """The endpoint that the options describe.

    Raises:
        FieldError: The address has none of the known forms.
        typer.BadParameter: Options contradict each other.
    """
    check_address(address, "ADDRESS")
    try:
        tls = None
        if tls_ca or tls_cert or tls_key or tls_server_name:
            tls = Tls(ca=tls_ca, certificate=tls_cert, key=tls_key, server_name=tls_server_name)
        return Endpoint(address=address, tls=tls, token_file=token_file, insecure=insecure)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise typer.BadParameter(message) from error
