"""How many connections the kernel keeps for a server that has not accepted them yet.

gRPC accepts all that wait before anything else, on a few threads, one for each core. A flood that
fills the thousands it asks the kernel for keeps calls of other connections waiting, health among
them. Beyond a shorter queue the kernel drops what comes, and whoever connects tries again by itself
a second later.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

MOST_WAITING = 64

_OWN_FILES = Path("/proc/self/fd")


def bound_backlog(port: int, most: int = MOST_WAITING) -> None:
    """Keeps at most that many waiting at a port of this process; without /proc nothing changes.

    Args:
        port: TCP port.
        most: Connections that may wait to be accepted.
    """
    for listener in listeners(port):
        with listener:
            listener.listen(most)


def listeners(port: int) -> Iterator[socket.socket]:
    """The TCP sockets with which this process listens at a port, as copies to be closed."""
    seen = set()
    for file in sorted(_OWN_FILES.iterdir()) if _OWN_FILES.is_dir() else ():
        try:
            status = file.stat()
            if not stat.S_ISSOCK(status.st_mode) or status.st_ino in seen:
                continue
            copy = socket.socket(fileno=os.dup(int(file.name)))
        except OSError:  # Closed meanwhile.
            continue
        seen.add(status.st_ino)  # The copy may have got a number that is still to come.
        if _listens(copy, port):
            yield copy
        else:
            copy.close()


def _listens(one: socket.socket, port: int) -> bool:
    inet = one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM
    return (
        inet
        and bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        and one.getsockname()[1] == port
    )
