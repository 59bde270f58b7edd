"""The HTTP server of /metrics: anybody who can connect takes a thread, of a few, for a while."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

logger = logging.getLogger(__name__)

CONNECTIONS = 16
"""Connections at once; those beyond are closed."""
OF_ONE_HOST = CONNECTIONS // 2
"""Of them those of one host, so that another's are taken."""
SECONDS = 10.0
"""How long one may last, from its opening to the last byte of the answer."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves a registry from a thread for each connection, within bounds.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 for any free one.
        registry: What is served.
        seconds: How long a connection may last.

    Raises:
        OSError: The address cannot be bound.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self, host: str, port: int, registry: CollectorRegistry, *, seconds: float = SECONDS
    ) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        self._seconds = seconds
        self._lock = threading.Lock()
        self._open: dict[socket.socket, tuple[str, float]] = {}
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        """Serves from a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Ends what is open and closes."""
        self.shutdown()
        self._thread.join()
        self.server_close()
        self._end(before=float("inf"))

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether a connection that was opened just now is one too many."""
        host = client_address[0]
        with self._lock:
            of_host = Counter(of for of, _ in self._open.values())[host]
            taken = len(self._open) < CONNECTIONS and of_host < OF_ONE_HOST
            if taken:
                self._open[request] = (host, time.monotonic())
        return taken

    def service_actions(self) -> None:
        """Called between connections, twice a second at least."""
        self._end(before=time.monotonic() - self._seconds)

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Called where a connection ended in the middle."""
        del request
        logger.debug("a connection from %s ended early", client_address[0], exc_info=True)

    def _end(self, before: float) -> None:
        """Ends connections opened before then; their threads find nothing more to read."""
        with self._lock:
            for connection, (_, opened) in self._open.items():
                if opened < before:
                    with suppress(OSError):  # It is gone already.
                        connection.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Logs nothing."""
