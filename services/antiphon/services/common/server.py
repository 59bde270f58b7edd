"""The server that every service is: health, reflection, metrics, token, TLS and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import REGISTRY, CollectorRegistry

from antiphon.clients import tracing
from antiphon.clients.channel_options import server_options
from antiphon.services.common.access import Access, Auth
from antiphon.services.common.admission import HEALTH_BYTES, Admission, Limits, Requests
from antiphon.services.common.backlog import bound_backlog
from antiphon.services.common.errors import StartError
from antiphon.services.common.health import Health
from antiphon.services.common.interception import Streams
from antiphon.services.common.interceptors import Errors, Identity, Metrics, Traces
from antiphon.services.common.prometheus import (
    rpc_metrics,
    serve_metrics,
    tell_build,
    tell_certificate,
)
from antiphon.services.common.server_settings import ServerSettings
from antiphon.services.common.stopping import StopSignals, run_until_stopped
from antiphon.services.common.tls import server_credentials

__all__ = ["Server", "ServerSettings", "StartError", "StopSignals", "run_until_stopped"]

logger = logging.getLogger(__name__)

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_HEALTH_CONNECTIONS = 128
_BEYOND_GRACE = 60.0
_FAREWELL_SECONDS = 2.0


class Server:
    """A gRPC server on the running event loop.

    Args:
        settings: How it listens.
        name: What it is called in logs and metrics, for example "reward".
        services: Full names of the services that `register` adds, for health and reflection.
        register: Adds the servicers to the gRPC server.
        registry: Where its metrics are.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        name: str,
        services: Sequence[str],
        register: Callable[[grpc.aio.Server], None],
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        settings.check()
        self.settings = settings
        self.name = name
        self.instance_id = settings.instance_id or f"{socket.gethostname()}-{os.getpid()}"
        self.boot_id = uuid.uuid4().hex
        self.address = ""
        self.metrics_address = ""
        self.health_address = ""
        self._services = tuple(services)
        self._register = register
        self._registry = registry
        self._metrics = Metrics(rpc_metrics(registry))
        self._health = Health(self._services)
        self._server: grpc.aio.Server | None = None
        self._health_server: grpc.aio.Server | None = None
        self._close_metrics: Callable[[], None] | None = None
        self._traced = False

    async def start(self) -> None:
        """Binds, starts, says SERVING and writes the address file.

        Raises:
            StartError: An address cannot be bound or a file cannot be read.
        """
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise

    async def _start(self) -> None:
        settings = self.settings
        tell_build(self.name, self._registry)
        if settings.traces:
            tracing.start(self.name)
            self._traced = True
        await self.set_serving(False)
        self._server = self._make_server()
        self._register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if settings.reflection or (settings.reflection is None and settings.on_loopback):
            names = (*self._services, _HEALTH, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        credentials = None
        if settings.tls_cert and settings.tls_key:
            credentials = server_credentials(
                settings.tls_cert, settings.tls_key, settings.tls_client_ca
            )
            tell_certificate(settings.tls_cert, self._registry)
        self.address = _bind(self._server, settings.host, settings.port, credentials)
        if settings.health_port is not None:
            self._health_server = self._make_health_server()
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._health_server)
            host = settings.health_host or (
                "127.0.0.1" if settings.host.startswith("unix:") else settings.host
            )
            self.health_address = _bind(
                self._health_server, host, settings.health_port, None, "--health-port"
            )
            await self._health_server.start()
        if settings.metrics_port is not None:
            self.metrics_address, self._close_metrics = serve_metrics(
                settings.metrics_host, settings.metrics_port, self._registry
            )
        await self._server.start()
        await self.set_serving(True)
        self._tell_address()
        logger.info(
            "%s serves on %s (metrics: %s)", self.name, self.address, self.metrics_address or "off"
        )

    async def set_serving(self, serving: bool) -> None:
        """Sets what health says of the server and of each of its services."""
        await self._health.set_serving(serving)

    async def calls_ended(self) -> None:
        """Returns once no call is in flight, health and reflection aside."""
        await self._metrics.wait_idle()

    async def stop(self, grace: float | None = None) -> None:
        """Ends the server: NOT_SERVING, then calls in flight finish, then all is closed.

        Watched health streams do not hold it up.

        Args:
            grace: Seconds for it all; by default that of the settings. What is still in flight
                then is cancelled.
        """
        grace = self.settings.grace_seconds if grace is None else grace
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        await self._health.enter_graceful_shutdown()
        if self._server is not None:
            await asyncio.sleep(min(self.settings.drain_seconds, grace))
            left = max(0.0, deadline - loop.time())
            # Its own timer must not run out while stop(None) below destroys the server: gRPC
            # would then use what is gone and take the process down.
            refusing = asyncio.create_task(self._server.stop(left + _BEYOND_GRACE))
            idle = asyncio.create_task(self.calls_ended())
            await asyncio.wait((refusing, idle), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            self._health.end_watches()
            if idle.done():
                # The last answers may still be on their way.
                left = max(0.0, deadline - loop.time())
                await asyncio.wait((refusing,), timeout=min(left, _FAREWELL_SECONDS))
            else:
                idle.cancel()
                logger.warning("%s ended with calls in flight after %g s", self.name, grace)
            await self._server.stop(None)
            await refusing
        await self._close()
        logger.info("%s has stopped", self.name)

    async def _close(self) -> None:
        for server in (self._server, self._health_server):
            if server is not None:
                await server.stop(None)
        if self._close_metrics is not None:
            await asyncio.to_thread(self._close_metrics)
            self._close_metrics = None
        if self._traced:
            self._traced = False
            await asyncio.to_thread(tracing.stop)

    def _make_server(self) -> grpc.aio.Server:
        settings = self.settings
        expose = settings.on_loopback or settings.expose_tracebacks
        limits = Limits(settings.max_calls, settings.max_request_bytes, settings.stall_seconds)
        interceptors = [Streams(limits.stall_seconds), self._metrics]
        if settings.traces:
            interceptors.append(Traces())
        interceptors.append(Errors(expose_tracebacks=expose))
        if settings.token_file or settings.access_file:
            access = Access(
                settings.token_file,
                settings.access_file,
                certificates_shown=settings.tls_client_ca is not None,
            )
            interceptors.append(Auth(access))
        interceptors += [Admission(limits), Identity(), Requests(limits)]
        options = _options(settings.max_message_bytes, settings.connections)
        if settings.max_connection_age_seconds is not None:
            age = int(settings.max_connection_age_seconds * 1000)
            options.append(("grpc.max_connection_age_ms", age))
        return grpc.aio.server(interceptors=interceptors, options=options)

    def _make_health_server(self) -> grpc.aio.Server:
        settings = self.settings
        limits = Limits(settings.max_calls, HEALTH_BYTES, settings.stall_seconds)
        interceptors = (
            Streams(limits.stall_seconds),
            self._metrics,
            Errors(expose_tracebacks=False),
            Admission(limits, of_one_host=-(-limits.calls // 2)),
            Requests(limits),
        )
        return grpc.aio.server(
            interceptors=interceptors, options=_options(HEALTH_BYTES, _HEALTH_CONNECTIONS)
        )

    def _tell_address(self) -> None:
        path = self.settings.address_file
        if path is None:
            return
        text = json.dumps(
            {
                "address": self.address,
                "metrics_address": self.metrics_address,
                "health_address": self.health_address,
                "pid": os.getpid(),
                "boot_id": self.boot_id,
            }
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{self.boot_id}")
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(path)


def _options(max_message_bytes: int, connections: int) -> list[tuple[str, int | str]]:
    return [
        *server_options(max_message_bytes=max_message_bytes),
        ("grpc.max_allowed_incoming_connections", connections),
        # A taken port is an error instead of a server that gets half of the calls.
        ("grpc.so_reuseport", 0),
    ]


def _bind(
    server: grpc.aio.Server,
    host: str,
    port: int,
    credentials: grpc.ServerCredentials | None,
    option: str = "--port",
) -> str:
    """Binds one address, whose port is that of `option`; returns it as callers write it."""
    unix = host.startswith("unix:")
    if unix:
        _refuse_taken_socket(Path(host.removeprefix("unix:").removeprefix("//")))
    bare = host.strip("[]")
    target = host if unix else f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"
    try:
        if not unix:
            _refuse_what_cannot_be_bound(bare, port)
        if credentials is None:
            bound = server.add_insecure_port(target)
        else:
            bound = server.add_secure_port(target, credentials)
    except (OSError, RuntimeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it cannot be bound"
        raise StartError(
            f"cannot listen on {target}: {problem}; choose another {option} (0 for any free one) "
            f"or {option.replace('port', 'host')}"
        ) from error
    if not unix:
        bound_backlog(bound)
    return target if unix else f"{target.rpartition(':')[0]}:{bound}"


def _refuse_what_cannot_be_bound(host: str, port: int) -> None:
    """Finds out before gRPC does, which writes lines of its own and does not say why.

    Raises:
        OSError: None of the host's addresses can be bound.
    """
    problem: OSError | None = None
    for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                problem = error
            else:
                return
    if problem is not None:
        raise problem


def _refuse_taken_socket(path: Path) -> None:
    """Refuses what gRPC would do without a word: take a living server's socket over."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.settimeout(1)
        probe.connect(str(path))
        raise StartError(f"cannot listen on unix:{path}: another server listens there")
