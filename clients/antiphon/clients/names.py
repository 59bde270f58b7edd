"""Names that stand for any number of processes, and the addresses behind them.

``dns:///name:port`` is what the machine's resolver says, as of a headless Service of Kubernetes;
``dns://server/name:port`` asks that DNS server. ``file:///path`` is a file with one address a line,
for clusters without a DNS of their own: whoever starts or ends a process rewrites it.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from pydantic import ValidationError

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.own_thread import in_own_thread
from antiphon.clients.types import FieldError

_DNS = re.compile(r"dns:(?://(?P<server>[^/]*)/)?(?P<host>\[[^\]]+\]|[^:/\[\]]+):(?P<port>\d+)")
_FILE = "file://"
_LISTED = 'addresses such as "host:port", one a line'
DNS_PORT = 53


class UnresolvedError(Exception):
    """Nothing is known behind a name now; it may be later.

    Args:
        address: The name.
        why: What the resolver said.
    """

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"{address} is not known ({why})")


def is_name(endpoint: Endpoint) -> bool:
    """Whether an endpoint stands for any number of processes that come and go."""
    return endpoint.address.startswith(("dns:", _FILE))


async def resolve(endpoint: Endpoint, *, timeout: float) -> tuple[Endpoint, ...]:
    """The endpoints behind a name, sorted by address; an address stands for itself.

    Args:
        endpoint: The name; its TLS files and token are those of each process. With TLS the name is
            what certificates are held against, unless `tls.server_name` says otherwise.
        timeout: Seconds.

    Raises:
        UnresolvedError: The name is not known, or not now.
        ValueError: The name cannot be read, or what is behind it is no address.
    """
    if not is_name(endpoint):
        return (endpoint,)
    if endpoint.address.startswith(_FILE):
        try:
            async with asyncio.timeout(timeout):
                return await in_own_thread(_listed, endpoint)
        except TimeoutError as error:
            raise UnresolvedError(endpoint.address, f"it was not read in {timeout:g} s") from error
    match = _DNS.fullmatch(endpoint.address)
    if match is None:
        raise FieldError("address", repr(endpoint.address), '"dns:///name:port"')
    host, port, server = match["host"].strip("[]"), int(match["port"]), match["server"]
    try:
        async with asyncio.timeout(timeout):
            found = await (_asked(server, host) if server else _looked_up(host))
    except TimeoutError as error:
        raise UnresolvedError(endpoint.address, f"no answer in {timeout:g} s") from error
    except OSError as error:
        raise UnresolvedError(endpoint.address, error.strerror or str(error)) from error
    return tuple(_at(endpoint, address, port, host) for address in sorted(found))


async def _looked_up(host: str) -> set[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=1)
    return {str(entry[4][0]) for entry in found}


async def _asked(server: str, host: str) -> set[str]:
    """What one DNS server says, of both kinds of address."""
    import dns.asyncresolver
    import dns.exception

    address, _, port = server.rpartition(":") if server.count(":") == 1 else (server, "", "")
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = [address.strip("[]")]
    resolver.port = int(port or DNS_PORT)
    try:
        answers = await resolver.resolve_name(host)
    except dns.exception.DNSException as error:
        raise OSError(str(error)) from error
    return set(answers.addresses())


def _at(endpoint: Endpoint, address: str, port: int, host: str) -> Endpoint:
    tls = endpoint.tls
    if tls is not None and tls.server_name is None:
        tls = tls.model_copy(update={"server_name": host})
    target = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    return endpoint.model_copy(update={"address": target, "tls": tls})


def _listed(endpoint: Endpoint) -> tuple[Endpoint, ...]:
    path = Path(endpoint.address.removeprefix(_FILE))
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise UnresolvedError(endpoint.address, "there is no such file yet") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UnresolvedError(endpoint.address, str(error)) from error
    entries = {entry for line in lines if (entry := line.partition("#")[0].strip())}
    return tuple(_entry(endpoint, entry, path) for entry in sorted(entries))


def _entry(endpoint: Endpoint, address: str, path: Path) -> Endpoint:
    """One process of a list, reached as the endpoint says.

    It is checked anew: a token must not go to an address where it would travel in the clear.
    """
    if address.startswith(("dns:", _FILE)):
        raise FieldError(str(path), repr(address), _LISTED)
    try:
        return Endpoint(
            address=address,
            tls=endpoint.tls,
            token_file=endpoint.token_file,
            insecure=endpoint.insecure,
        )
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise FieldError(str(path), f"{address!r} ({why})", _LISTED) from error
