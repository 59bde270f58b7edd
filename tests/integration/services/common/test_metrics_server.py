"""What the HTTP server of /metrics takes of those who connect."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from prometheus_client import CollectorRegistry, Gauge

from antiphon.services.common.metrics_server import CONNECTIONS, OF_ONE_HOST, MetricsServer


@contextmanager
def serving(seconds: float) -> Iterator[MetricsServer]:
    registry = CollectorRegistry()
    Gauge("rain", "Millimetres.", registry=registry).set(7)
    server = MetricsServer("127.0.0.1", 0, registry, seconds=seconds)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def connect(server: MetricsServer, host: str) -> socket.socket:
    address = ("127.0.0.1", server.server_port)
    return socket.create_connection(address, timeout=60, source_address=(host, 0))


def answer(server: MetricsServer, host: str) -> bytes:
    """What is answered; nothing where the connection is one too many."""
    with connect(server, host) as connection, suppress(ConnectionError):
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return connection.makefile("rb").read()
    return b""


def test_silent_connections_are_bounded_and_leave_room_for_other_hosts() -> None:
    before = threading.active_count()
    with serving(seconds=600) as server, ExitStack() as stack:
        silent = [stack.enter_context(connect(server, "127.0.0.1")) for _ in range(100)]
        # Those that are one too many are closed; the next is accepted after them.
        assert b"rain 7.0" in answer(server, "127.0.0.2")
        assert all(connection.recv(1) == b"" for connection in silent[OF_ONE_HOST:])
        for host in ("127.0.0.2", "127.0.0.3"):
            for _ in range(100):
                stack.enter_context(connect(server, host))
        assert answer(server, "127.0.0.4") == b""
        assert threading.active_count() <= before + 1 + CONNECTIONS


@pytest.mark.parametrize("sent", [b"", b"GET /met", b"GET /metrics HTTP/1.0\r\nA: b\r\n"])
def test_a_request_that_does_not_come_whole_is_given_up(sent: bytes) -> None:
    with serving(seconds=0.1) as server, connect(server, "127.0.0.1") as connection:
        connection.sendall(sent)
        assert connection.recv(1) == b""


def test_an_end_leaves_no_thread_of_a_silent_connection() -> None:
    before = set(threading.enumerate())
    with serving(seconds=600) as server, connect(server, "127.0.0.1") as connection:
        connection.sendall(b"GET")
        assert b"rain 7.0" in answer(server, "127.0.0.1")
        threads = set(threading.enumerate()) - before
        server.stop()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
