"""Options of channels and servers that have to fit each other.

A client that pings more often than its server permits has its connection closed ("too many
pings"). Services of this project take the server's options from here too. Services that users
write keep gRPC's own default, one ping in five minutes, so they are pinged less often than that.
"""

from __future__ import annotations

import json

PING_SECONDS = 60.0
"""How often a client pings a silent connection to a service of this project."""

PING_SECONDS_FOREIGN = 330.0
"""How often a client pings a silent connection to a service that a user wrote."""

PING_TIMEOUT_SECONDS = 20.0
"""How long a ping may go unanswered before the connection counts as dead."""

SERVER_MIN_PING_SECONDS = 20.0
"""The shortest pause between pings that servers of this project permit."""

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""The largest message that clients and servers of this project receive."""

FOREIGN_MESSAGE_BYTES = 4 * 1024 * 1024
"""gRPC's own limit on a received message, its envelope included: what any service takes."""

PENDING_CALLS = 32_768
"""Calls that wait for a server to look at them; gRPC itself cancels those beyond."""

PENDING_SECONDS = 24 * 3600
"""How long one of them may wait, which is its caller's to say; by default gRPC cancels it after
30 s, and code of a user's may hold the interpreter for longer."""

REQUEST_BYTES = FOREIGN_MESSAGE_BYTES - 256 * 1024
"""Where batches to services that a user wrote are split, with room for the envelope."""

Options = list[tuple[str, int | str]]


def client_options(
    ping_seconds: float = PING_SECONDS,
    *,
    balanced_service: str | None = None,
    server_name: str | None = None,
) -> Options:
    """Options of a channel.

    Args:
        ping_seconds: Pause between keepalive pings on a silent connection.
        balanced_service: Spread calls over every address that the name resolves to, leaving out
            those whose health service says that this service does not serve.
        server_name: The name to look for in the server's certificate, where it is not the
            address.
    """
    options: Options = [
        ("grpc.keepalive_time_ms", round(ping_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", round(PING_TIMEOUT_SECONDS * 1000)),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", -1),
        # Retries are `antiphon.clients.retry`'s alone: a second layer would multiply them.
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
        # Reconnect soon after a restart; gRPC's own pause grows to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 250),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 5000),
        # Services are reached directly, whatever http_proxy says.
        ("grpc.enable_http_proxy", 0),
    ]
    if balanced_service is not None:
        config = {
            "loadBalancingConfig": [{"round_robin": {}}],
            "healthCheckConfig": {"serviceName": balanced_service},
        }
        options.append(("grpc.service_config", json.dumps(config)))
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    return options


def server_options(
    min_ping_seconds: float = SERVER_MIN_PING_SECONDS,
    *,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> Options:
    """Options of a server that fit `client_options`.

    Args:
        min_ping_seconds: The shortest pause between pings that is permitted.
        max_message_bytes: The largest message that is received.
    """
    return [
        ("grpc.http2.min_ping_interval_without_data_ms", round(min_ping_seconds * 1000)),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", round(min_ping_seconds * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        # A caller that is gone without a word is noticed, and its calls end.
        ("grpc.keepalive_time_ms", round(PING_SECONDS * 1000)),
        ("grpc.keepalive_timeout_ms", round(PING_TIMEOUT_SECONDS * 1000)),
        # By default gRPC cancels calls by chance where a thousand wait.
        ("grpc.server.max_pending_requests", PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS),
        ("grpc.server_max_unrequested_time_in_server", PENDING_SECONDS),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
    ]
