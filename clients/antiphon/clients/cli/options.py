"""Options that every command with an address has: TLS and token."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from antiphon.clients.endpoint import Endpoint, Tls, check_address

Address = Annotated[
    str, typer.Argument(help='Where it is: "host:port", "unix:/path" or "dns:///name:port".')
]
TlsCa = Annotated[
    Path | None, typer.Option(help="CA that signed the server's certificate; turns TLS on.")
]
TlsCert = Annotated[Path | None, typer.Option(help="Your certificate, for mutual TLS.")]
TlsKey = Annotated[Path | None, typer.Option(help="Your key, for mutual TLS.")]
TlsServerName = Annotated[
    str | None, typer.Option(help="Name in the server's certificate, where not the address.")
]
TokenFile = Annotated[Path | None, typer.Option(help="File with the bearer token.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Send the token in plain text off loopback.")
]


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
