"""The same bytes to as many processes over plain TCP sockets on loopback: the floor of a push.

The receivers keep what they get, as those of a push must.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

PIECE = 1 << 20

_RECEIVER = f"""
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
room, got = memoryview(bytearray(int(sys.argv[1]))), 0
connection, _ = server.accept()
while got < len(room):
    got += connection.recv_into(room[got : got + {PIECE}])
connection.sendall(b"x")
"""


def seconds_to_send(buffers: Sequence[memoryview], receivers: int) -> float:
    """Seconds until each of so many processes has read all buffers, all side by side."""
    total = sum(buffer.nbytes for buffer in buffers)
    processes = [
        subprocess.Popen([sys.executable, "-c", _RECEIVER, str(total)], stdout=subprocess.PIPE)
        for _ in range(receivers)
    ]
    connections = []
    for process in processes:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        connections.append(socket.create_connection(("127.0.0.1", port)))
    threads = [
        threading.Thread(target=_send, args=(connection, buffers)) for connection in connections
    ]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    for connection, process in zip(connections, processes, strict=True):
        connection.close()
        if process.wait() != 0:
            raise RuntimeError("a receiver of the raw bytes failed")
    return seconds


def _send(connection: socket.socket, buffers: Sequence[memoryview]) -> None:
    for buffer in buffers:
        for start in range(0, buffer.nbytes, PIECE):
            connection.sendall(buffer[start : start + PIECE])
    connection.recv(1)
