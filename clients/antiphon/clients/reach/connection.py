"""Name, connection and TLS of an address, looked at before gRPC, which says little of them."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.reach.remarks import FaultError, Remark, Verdict

ENDING_SECONDS = 14 * 86400.0
"""A certificate that ends within it is warned of."""
_UNKNOWN_CA = (18, 19, 20, 21)  # X509_V_ERR_... of OpenSSL
_EXPIRED, _NOT_YET_VALID, _OTHER_NAME = 10, 9, 62


async def connected(endpoint: Endpoint, timeout: float) -> Remark:
    """Find the name and open a connection."""
    began = time.perf_counter()
    if (path := _socket(endpoint.address)) is not None:
        await _open("connection", lambda: asyncio.open_unix_connection(path), timeout, path)
        return Remark("connection", Verdict.OK, f"the socket {path} is open")
    if re.match(r"dns://[^/]", endpoint.address):
        return Remark("connection", Verdict.OK, "another DNS server is asked for its name")
    host, port = _host_port(endpoint.address)
    try:
        found = await asyncio.wait_for(
            asyncio.get_running_loop().getaddrinfo(host, port, type=1), timeout
        )
    except TimeoutError as error:
        raise FaultError("name", f"no answer in {timeout:g} s", "look at the DNS server") from error
    except (OSError, UnicodeError) as error:
        raise FaultError(
            "name",
            f"{host} is not known ({getattr(error, 'strerror', None) or error})",
            "compare the address with the service's name; in Kubernetes NAME.NAMESPACE:PORT, and "
            "a headless Service has a name only while a pod is ready or publishNotReadyAddresses "
            "is set",
        ) from error
    await _open("connection", lambda: asyncio.open_connection(host, port), timeout, f"port {port}")
    addresses = len({entry[4][0] for entry in found})
    seconds = time.perf_counter() - began
    several = "" if addresses == 1 else f", {addresses} addresses"
    return Remark("connection", Verdict.OK, f"in {seconds * 1000:.1f} ms{several}")


async def certified(endpoint: Endpoint, timeout: float) -> Remark:
    """Shake hands as the endpoint's TLS files say, and look at the server's certificate."""
    tls = endpoint.tls
    assert tls is not None
    if tls.server_name is None and _socket(endpoint.address) is not None:
        raise FaultError(
            "TLS",
            "a unix socket has no name that a certificate could be for",
            "set tls.server_name to the name in the server's certificate",
        )
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        context.set_alpn_protocols(["h2"])
        if tls.certificate and tls.key:
            context.load_cert_chain(tls.certificate, tls.key)
    except OSError as error:
        raise FaultError("TLS", f"a file of tls cannot be used ({error})", "PEM files") from error
    name, connect, where = _tls_connection(endpoint.address, tls.server_name, context)
    try:
        found = await _open("TLS", connect, timeout, where)
    except ssl.SSLCertVerificationError as error:
        raise FaultError("TLS", error.verify_message, _tls_advice(error, name)) from error
    except ssl.SSLError as error:
        raise FaultError(
            "TLS",
            str(error.reason or error),
            "the other side speaks no TLS, or wants a client certificate (tls.certificate and "
            "tls.key); start it with --tls-cert and --tls-key, or leave tls out here",
        ) from error
    left = ssl.cert_time_to_seconds(found["notAfter"]) - time.time()
    until = datetime.fromtimestamp(time.time() + left, UTC).date().isoformat()
    if left < ENDING_SECONDS:
        advice = "renew the certificate; servers read new files without a restart"
        return Remark("TLS", Verdict.WARNING, f"the certificate ends on {until}", advice)
    return Remark("TLS", Verdict.OK, f"the certificate is valid until {until}")


async def speaks_tls(endpoint: Endpoint, timeout: float) -> bool:
    """Whether the other side speaks TLS, whatever its certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, connect, _ = _tls_connection(endpoint.address, None, context)
    try:
        await _open("", connect, timeout, "")
    except (OSError, FaultError):
        return False
    return True


def _tls_connection(
    address: str, server_name: str | None, context: ssl.SSLContext
) -> tuple[str, Callable[[], Awaitable[tuple[Any, Any]]], str]:
    """The name that the certificate must be for, what connects, and where, in words."""
    if (path := _socket(address)) is not None:
        name = server_name or "localhost"
        return (
            name,
            lambda: asyncio.open_unix_connection(path, ssl=context, server_hostname=name),
            path,
        )
    host, port = _host_port(address)
    name = server_name or host
    return (
        name,
        lambda: asyncio.open_connection(host, port, ssl=context, server_hostname=name),
        f"port {port}",
    )


async def _open(
    what: str, connect: Callable[[], Awaitable[tuple[Any, Any]]], timeout: float, where: str
) -> Any:
    """Connect, look, disconnect; the certificate of the other side where there is one."""
    try:
        _, writer = await asyncio.wait_for(connect(), timeout)
    except TimeoutError as error:
        raise FaultError(
            what,
            f"no answer within {timeout:g} s",
            "something drops the packets: look at firewalls, network policies, and the address",
        ) from error
    except ssl.SSLError:
        raise
    except OSError as error:
        raise FaultError(
            what,
            f"refused at {where} ({error.strerror or error})",
            "nothing listens there: start the service, or compare its --host and --port; one that "
            "listens on 127.0.0.1 is reached from its own machine only",
        ) from error
    certificate = writer.get_extra_info("peercert")
    writer.transport.abort()  # the other side may be in no hurry to end TLS in order
    return certificate


def _tls_advice(error: ssl.SSLCertVerificationError, name: str | None) -> str:
    if error.verify_code == _EXPIRED:
        return "renew the server's certificate"
    if error.verify_code == _NOT_YET_VALID:
        return "compare the clocks of both machines"
    if error.verify_code == _OTHER_NAME:
        return f"the certificate is not for {name!r}: set tls.server_name to the name in it"
    if error.verify_code in _UNKNOWN_CA:
        return "another CA signed the server's certificate: set tls.ca to that one"
    return "compare the server's certificate with tls.ca"


def _socket(address: str) -> str | None:
    """Path of a unix socket, None for any other address."""
    if address.startswith("unix-abstract:"):
        return "\0" + address.removeprefix("unix-abstract:")
    if address.startswith("unix:"):
        return re.sub(r"^unix:(//)?", "", address)
    return None


def _host_port(address: str) -> tuple[str, int]:
    """Host and port of an address, of several the first.

    Raises:
        FaultError: There is no port.
    """
    target = re.sub(r"^(dns|ipv4|ipv6):(//[^/]*/)?", "", address).lstrip("/").partition(",")[0]
    host, _, port = target.rpartition(":")
    if not host or not port.isdecimal():
        raise FaultError("name", f"{address} has no port", 'write "host:port"')
    return host.strip("[]"), int(port)
