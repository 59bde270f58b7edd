"""Where a service is and how to reach it: address, TLS, token."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from antiphon.clients.channel_options import PING_SECONDS, client_options
from antiphon.clients.renewed_channel import RenewedChannel
from antiphon.clients.tls_files import read_ca, read_pair
from antiphon.clients.types import FieldError

Metadata = tuple[tuple[str, str], ...]

_SCHEMES = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "file:///")
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.%a-z]+\]|[^\s:/\[\]]+):(\d{1,5})")
_DNS = re.compile(r"dns:(?://(?P<server>[^/]*)/)?(?:\[[^\]]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})")
_WANTED = '"host:port", "unix:/path" or "dns:///name:port"'
_DNS_WANTED = (
    '"dns:///name:port" with a port of 1 to 65535, or "dns://10.0.0.2:53/name:port" with the '
    "IP address of a DNS server"
)


class Tls(BaseModel):
    """Files for TLS, and for mutual TLS where certificate and key are given too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ca: Path | None = Field(default=None, description="CA that signed the server's certificate")
    certificate: Path | None = Field(default=None, description="this client's certificate")
    key: Path | None = Field(default=None, description="this client's key")
    server_name: str | None = Field(
        default=None, description="name in the server's certificate, where not the address"
    )

    @model_validator(mode="after")
    def _certificate_with_key(self) -> Tls:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together: give both or neither")
        return self


class Endpoint(BaseModel):
    """Where a service is and how to reach it. A plain address stands for an endpoint without TLS.

    ``Endpoint(address="localhost:50051")``, ``Endpoint.of("unix:/run/reward.sock")``
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str = Field(description=_WANTED)
    tls: Tls | None = Field(default=None, description="files for TLS; none for plain text")
    token_file: Path | None = Field(
        default=None, description="file with the bearer token, read anew for every call"
    )
    insecure: bool = Field(default=False, description="send the token in plain text off loopback")

    @classmethod
    def of(cls, endpoint: Endpoint | str) -> Endpoint:
        """The endpoint, or the one that a plain address stands for.

        Raises:
            FieldError: The address has none of the known forms.
        """
        if isinstance(endpoint, Endpoint):
            return endpoint
        if not isinstance(endpoint, str):
            raise FieldError("address", type(endpoint).__name__, "a text such as localhost:50051")
        check_address(endpoint)
        return cls(address=endpoint)

    @model_validator(mode="before")
    @classmethod
    def _from_address(cls, value: Any) -> Any:
        return {"address": value} if isinstance(value, str) else value

    @field_validator("address")
    @classmethod
    def _known_form(cls, value: str) -> str:
        return check_address(value)

    @model_validator(mode="after")
    def _no_token_in_the_clear(self) -> Endpoint:
        if self.token_file and not (self.tls or self.insecure or is_local(self.address)):
            raise ValueError(
                f"a token for {self.address} would travel in plain text: give tls files, or set "
                "insecure where the network is trusted"
            )
        return self

    def metadata(self) -> Metadata:
        """Metadata that every call carries.

        Raises:
            FieldError: The token file cannot be read or is empty.
        """
        if self.token_file is None:
            return ()
        return (("authorization", f"Bearer {_read(self.token_file, 'token_file').strip()}"),)


def check_address(address: str, field: str = "address") -> str:
    """Return `address`; FieldError where it has none of the known forms."""
    if address.startswith("dns:"):
        name = _DNS.fullmatch(address)
        if name is None or not (_is_port(name["port"]) and _is_dns_server(name["server"])):
            raise FieldError(field, repr(address), _DNS_WANTED)
        return address
    if address.startswith(_SCHEMES):
        if not address.partition(":")[2].strip("/"):
            raise FieldError(field, repr(address), _WANTED)
        return address
    match = _HOST_PORT.fullmatch(address)
    if match is None or not _is_port(match.group(2)):
        hint = "; leave http:// out" if "://" in address else ""
        raise FieldError(field, repr(address), _WANTED + hint)
    return address


def _is_port(text: str) -> bool:
    return text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536


def _is_dns_server(text: str | None) -> bool:
    """Whether this is an IP address, with a port or without, or nothing: the machine's resolver."""
    if not text:
        return True
    host, colon, port = text.rpartition(":") if text.count(":") == 1 else (text, "", "")
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return not colon or _is_port(port)


def is_local(address: str) -> bool:
    """Whether `address` cannot leave this machine: a unix socket or the loopback interface."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    target = re.sub(r"^(dns|ipv4|ipv6):(///?)?", "", address)
    host = target.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_channel(
    endpoint: Endpoint | str,
    *,
    ping_seconds: float = PING_SECONDS,
    service: str | None = None,
) -> grpc.aio.Channel:
    """Open a channel. It connects with the first call; the running event loop owns it.

    Renewed TLS files count from the next call on.

    Calls must pass `endpoint.metadata()`, which carries the token.

    Args:
        endpoint: Where the service is.
        ping_seconds: Pause between keepalive pings on a silent connection.
        service: Full name of the gRPC service; with a ``dns:`` address, calls spread over all
            replicas that say they serve it.

    Raises:
        FieldError: The address is of no known form, or a TLS file cannot be read
            or is not what it should be.
    """
    endpoint = Endpoint.of(endpoint)
    if endpoint.address.startswith("file:"):
        wanted = f"{_WANTED}; a file lists the replicas of a generation service"
        raise FieldError("address", repr(endpoint.address), wanted)
    tls = endpoint.tls
    options = client_options(
        ping_seconds,
        balanced_service=service if endpoint.address.startswith("dns:") else None,
        server_name=tls.server_name if tls else None,
    )
    if tls is None:
        return grpc.aio.insecure_channel(endpoint.address, options=options)
    files = [file for file in (tls.ca, tls.certificate, tls.key) if file]

    def open_one() -> grpc.aio.Channel:
        return grpc.aio.secure_channel(endpoint.address, _credentials(tls), options=options)

    return RenewedChannel(files, open_one) if files else open_one()


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    certificate = key = None
    if tls.certificate and tls.key:
        certificate, key = read_pair(
            tls.certificate, tls.key, certificate_field="tls.certificate", key_field="tls.key"
        )
    return grpc.ssl_channel_credentials(
        root_certificates=read_ca(tls.ca, "tls.ca") if tls.ca else None,
        private_key=key,
        certificate_chain=certificate,
    )


def _read(path: Path, field: str) -> str:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise FieldError(field, f"{path} ({error})", "a readable text file") from error
    if not text.strip():
        raise FieldError(field, f"{path}, which is empty", "a file with content")
    return text
