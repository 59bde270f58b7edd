"""How a server listens, whom it lets in and how it ends."""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from antiphon.clients.channel_options import MAX_MESSAGE_BYTES
from antiphon.services.common.errors import StartError

if sys.platform != "win32":
    import resource

_CONNECTIONS = 512
"""By default: calls share one, and what waits in gRPC behind a flood of new ones stays short."""


class ServerSettings(BaseModel):
    """Settings that every server has; each is an option of the `antiphon serve` commands."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(
        "127.0.0.1", description="Address to listen on, or unix:/path/of/socket. 0.0.0.0 for all."
    )
    port: int = Field(0, ge=0, le=65535, description="Port to listen on; 0 for any free one.")
    metrics_host: str = Field("127.0.0.1", description="Address that /metrics listens on.")
    metrics_port: int | None = Field(
        0, ge=0, le=65535, description="Port of /metrics over HTTP; 0 for any free one."
    )
    health_host: str | None = Field(
        None, description="Address of the health port; by default that of --host."
    )
    health_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="A port of its own, without TLS and token, that serves grpc.health.v1 only.",
    )
    tls_cert: Path | None = Field(None, description="Certificate chain (PEM); turns TLS on.")
    tls_key: Path | None = Field(None, description="Private key (PEM) of the certificate.")
    tls_client_ca: Path | None = Field(
        None, description="Callers must show a certificate signed by this CA (PEM): mTLS."
    )
    token_file: Path | None = Field(
        None, description="File with the token that callers must send; read again when it changes."
    )
    access_file: Path | None = Field(
        None,
        description="TOML file that names callers, by token or certificate, and what each may do; "
        "read again when it changes (docs/security.md).",
    )
    insecure: bool = Field(
        False, description="Listen off loopback without TLS and token; for closed networks."
    )
    reflection: bool | None = Field(
        None, description="gRPC reflection; by default on loopback only."
    )
    expose_tracebacks: bool = Field(
        False, description="Send a user function's traceback to callers off loopback too."
    )
    traces: bool = Field(
        False,
        description="Send OpenTelemetry traces to where OTEL_EXPORTER_OTLP_ENDPOINT says (extra "
        "otel).",
    )
    instance_id: str = Field("", description="Name of this replica; by default host name and pid.")
    grace_seconds: float = Field(
        10, ge=0, description="Seconds from SIGTERM within which the process has ended."
    )
    drain_seconds: float = Field(
        0,
        ge=0,
        description="Part of the grace in which calls are still taken while health says "
        "NOT_SERVING, so that balancers look elsewhere.",
    )
    max_connection_age_seconds: float | None = Field(
        None,
        gt=0,
        description="Ask callers to reconnect after this time, so that they find new replicas.",
    )
    max_connections: int | None = Field(
        None,
        ge=1,
        description="Most connections at once; more are closed. By default half of the files that "
        "the process may have open, at most 512.",
    )
    max_calls: int = Field(
        1024, ge=1, description="Most calls at once; more are refused with RESOURCE_EXHAUSTED."
    )
    max_message_bytes: int = Field(
        MAX_MESSAGE_BYTES, ge=1, description="Largest message that is taken."
    )
    max_request_bytes: int = Field(
        1 << 30,
        ge=1,
        description="Most bytes of the requests of calls under way; more are refused with "
        "RESOURCE_EXHAUSTED.",
    )
    stall_seconds: float = Field(
        120,
        gt=0,
        description="Seconds that a caller may leave a request unfinished or an answer unread.",
    )
    address_file: Path | None = Field(
        None, description="File that gets the bound addresses as JSON once the server serves."
    )
    exit_with_parent: bool = Field(
        False, description="Stop when standard input ends, and ignore SIGINT: for child processes."
    )

    @property
    def connections(self) -> int:
        """Most connections at once: files and pipes of the process itself find room beside them."""
        if self.max_connections is not None:
            return self.max_connections
        if sys.platform == "win32":
            return _CONNECTIONS
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return _CONNECTIONS if files < 0 else max(1, min(_CONNECTIONS, files // 2))

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    def check(self) -> None:
        """Refuses settings that contradict each other or that leave the server open.

        Raises:
            StartError: Says what to change.
        """
        if (self.tls_cert is None) != (self.tls_key is None):
            raise StartError("TLS needs both --tls-cert and --tls-key; one of them is missing")
        if self.tls_client_ca and not self.tls_cert:
            raise StartError("--tls-client-ca (mTLS) needs --tls-cert and --tls-key as well")
        if self.drain_seconds > self.grace_seconds:
            raise StartError(
                f"--drain-seconds {self.drain_seconds:g} must be within --grace-seconds "
                f"{self.grace_seconds:g}"
            )
        if self.max_request_bytes < self.max_message_bytes:
            raise StartError(
                f"--max-request-bytes {self.max_request_bytes} must hold a message of "
                f"--max-message-bytes {self.max_message_bytes}"
            )
        known = self.token_file or self.access_file or self.tls_client_ca
        guarded = self.tls_cert is not None and known
        if not (self.on_loopback or guarded or self.insecure):
            raise StartError(
                f"refusing to listen on {self.host}, which other machines can reach, without "
                "protection: give --tls-cert and --tls-key with --token-file, --access-file or "
                "--tls-client-ca, "
                "or listen on 127.0.0.1, or say --insecure where the network itself is closed"
            )


def is_loopback(host: str) -> bool:
    """Whether `host` is a unix socket or an address of this machine alone."""
    if host.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
