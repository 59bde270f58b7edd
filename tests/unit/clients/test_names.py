"""Names become the addresses behind them: by a list in a file, and by a DNS server."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dns.message
import dns.rrset
import pytest

from antiphon.clients.endpoint import Endpoint, Tls, open_channel
from antiphon.clients.names import UnresolvedError, is_name, resolve
from antiphon.clients.types import FieldError


class NameServer(asyncio.DatagramProtocol):
    """Answers questions for A records."""

    def __init__(self) -> None:
        self.addresses = ["127.0.0.2", "127.0.0.1"]

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        query = dns.message.from_wire(data)
        (question,) = query.question
        answer = dns.message.make_response(query)
        if question.rdtype == 1 and self.addresses:
            answer.answer.append(dns.rrset.from_text(question.name, 0, "IN", "A", *self.addresses))
        self._transport.sendto(answer.to_wire(), address)


@asynccontextmanager
async def name_server() -> AsyncIterator[tuple[NameServer, int]]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, ("127.0.0.1", 0))
    try:
        yield server, transport.get_extra_info("sockname")[1]
    finally:
        transport.close()


async def addresses(endpoint: Endpoint) -> list[str]:
    return [found.address for found in await resolve(endpoint, timeout=5)]


async def test_a_name_is_asked_of_its_dns_server_whenever_it_is_resolved() -> None:
    async with name_server() as (server, port):
        name = Endpoint(address=f"dns://127.0.0.1:{port}/replicas.test.:50051")
        assert await addresses(name) == ["127.0.0.1:50051", "127.0.0.2:50051"]
        server.addresses.pop()
        assert await addresses(name) == ["127.0.0.2:50051"]
        server.addresses.clear()
        with pytest.raises(UnresolvedError, match=r"replicas\.test"):
            await addresses(name)


async def test_the_machines_resolver_is_asked_for_a_name_without_a_server() -> None:
    assert "127.0.0.1:50051" in await addresses(Endpoint(address="dns:///localhost:50051"))


async def test_certificates_are_held_against_the_name(tmp_path: Path) -> None:
    tls = Tls(ca=tmp_path / "ca.pem")
    (found,) = await resolve(Endpoint(address="dns:///127.0.0.1:50051", tls=tls), timeout=5)
    assert found.tls == Tls(ca=tls.ca, server_name="127.0.0.1")


async def test_a_list_is_read_anew_each_time(tmp_path: Path) -> None:
    name = Endpoint(address=f"file://{tmp_path}/list")
    with pytest.raises(UnresolvedError, match="no such file yet"):
        await addresses(name)
    (tmp_path / "list").write_text("# agent 0\nb:2\n\na:1  # first\nb:2\n")
    assert await addresses(name) == ["a:1", "b:2"]
    (tmp_path / "list").write_text("")
    assert await addresses(name) == []


@pytest.mark.parametrize("line", ["http://a:1", "dns:///a:1", "file:///x", "a"])
async def test_a_list_of_anything_but_addresses_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "list").write_text(f"{line}\n")
    with pytest.raises(FieldError, match=f"{tmp_path}/list: got '{line}'.*one a line"):
        await addresses(Endpoint(address=f"file://{tmp_path}/list"))


async def test_a_token_does_not_go_to_an_address_where_it_would_travel_in_the_clear(
    tmp_path: Path,
) -> None:
    """S18: whoever can write the list must not get the token."""
    (tmp_path / "list").write_text("10.0.0.7:50051\n")
    (tmp_path / "token").write_text("secret")
    with pytest.raises(ValueError, match="plain text"):
        Endpoint(address=f"file://{tmp_path}/list", token_file=tmp_path / "token")


async def test_an_address_stands_for_itself() -> None:
    address = Endpoint(address="a:1")
    assert not is_name(address)
    assert await resolve(address, timeout=1) == (address,)


async def test_a_list_is_no_address_to_call() -> None:
    with pytest.raises(FieldError, match="lists the replicas"):
        open_channel("file:///list")


async def test_a_file_that_hangs_is_given_up(tmp_path: Path) -> None:
    """As one on a network mount may: here a pipe that nobody writes to."""
    os.mkfifo(pipe := tmp_path / "replicas")
    before = set(threading.enumerate())
    with pytest.raises(UnresolvedError, match=r"replicas is not known \(it was not read in 0.05 s"):
        await resolve(Endpoint(address=f"file://{pipe}"), timeout=0.05)
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert [thread.daemon for thread in left] == [True], "the process does not wait for it"
    os.close(os.open(pipe, os.O_WRONLY))
