"""The queue of connections that wait to be accepted."""

from __future__ import annotations

import socket
import struct

import pytest

from antiphon.services.common.backlog import MOST_WAITING, bound_backlog, listeners
from antiphon.services.common.server import Server, ServerSettings

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="Linux tells the queue")


def longest_queue(listener: socket.socket) -> int:
    """What listen() was told, from `tcpi_sacked` of a listener's TCP_INFO."""
    return int(
        struct.unpack_from("I", listener.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 64), 28)[0]
    )


async def test_a_flood_of_connections_waits_in_the_kernel_in_a_short_queue() -> None:
    """S15: what waits to be accepted is bounded, so that health is answered beside it."""
    server = Server(ServerSettings(port=0, health_port=0), name="x", services=(), register=id)
    await server.start()
    try:
        for address in (server.address, server.health_address):
            found = list(listeners(int(address.rpartition(":")[2])))
            queues = [longest_queue(one) for one in found]
            for one in found:
                one.close()
            assert queues == [MOST_WAITING]
    finally:
        await server.stop(0)


def test_connections_beyond_the_queue_are_not_made() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        bound_backlog(listener.getsockname()[1], 2)
        callers = [socket.socket() for _ in range(5)]
        for caller in callers:
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        listener.setblocking(False)
        made = 0
        while True:
            try:
                listener.accept()[0].close()
            except BlockingIOError:
                break
            made += 1
        for caller in callers:
            caller.close()
    assert made == 3  # The kernel takes one more than it is told.
