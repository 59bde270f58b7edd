"""Connections that are opened and dropped: silent, in a greeting, in a frame, with a reset."""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from pathlib import Path

from benchmarks.load_parts.calls import Outcome

_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_OPENINGS = (
    b"",
    _GREETING[:9],
    _GREETING,
    _GREETING + b"\x00\x40\x00\x01\x04\x00\x00",
    b"\xff" * 99,
)
_RESET = struct.pack("ii", 1, 0)


def drop(address: str, count: int, per_second: float) -> Outcome:
    """Open and drop that many, one after the other; the seconds are those of connecting."""
    host, _, port = address.rpartition(":")
    codes: Counter[str] = Counter()
    seconds = []
    start = time.perf_counter()
    for number in range(count):
        began = time.perf_counter()
        if (early := start + number / per_second - began) > 0:
            time.sleep(early)
            began = time.perf_counter()
        try:
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                seconds.append(time.perf_counter() - began)
                if number % 2:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                connection.sendall(_OPENINGS[number % len(_OPENINGS)])
            codes["OK"] += 1
        except OSError as error:
            codes[type(error).__name__] += 1
    return Outcome(dict(codes), tuple(seconds))


def files_open(pid: int) -> int:
    """Files and sockets that a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
