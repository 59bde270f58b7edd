"""A process that imports first and forks later: its children start with everything imported.

    python -c "from antiphon.services.common.nursery import main; main()" MODULE ...

imports the modules, then reads requests from its standard input, a unix socket: a line of JSON with
the `arguments` of an `antiphon` command, its `environ` and its `directory`, and with it two file
descriptors, the command's standard input and its output. It forks, the child becomes the command,
and it answers ``{"pid": ...}``. Of a child that has ended it says ``{"pid": ..., "code": ...}``,
with the code that `subprocess` would give. It ends with the socket; its children do not.

Forking is safe here as nothing but imports has happened: one thread, no gRPC, no GPU touched.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import selectors
import signal
import socket
import sys
import traceback
from importlib import import_module

REQUEST_BYTES = 1 << 20
"""Most of a request: a whole environment and a command line fit."""


def main() -> None:
    """Serve; in a child, run the command that was asked for."""
    socket_in = socket.socket(fileno=os.dup(0))
    for module in sys.argv[1:]:
        import_module(module)
    gc.collect()
    gc.freeze()  # A collection in a child would copy the pages that it shares with this process.
    arguments = _await_birth(socket_in)
    if arguments is None:
        return
    from antiphon.clients.cli import main as command

    sys.argv = ["antiphon", *arguments]
    code: object = 0
    try:
        command()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - told, and the process ends
        traceback.print_exc()
        code = 1
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking down the interpreter with all that was imported would take half a second of a core.
    os._exit(code if isinstance(code, int) else int(code is not None))


def _await_birth(requests: socket.socket) -> list[str] | None:
    """In a child, the arguments of its command; None once the parent is gone."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeups_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(reader, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if reader in ready:
                os.read(reader, 4096)
                _tell_ended(requests)
            if requests not in ready:
                continue
            data, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 2)
            if not data:
                return None
            while not data.endswith(b"\n"):
                data += requests.recv(REQUEST_BYTES)
            request = json.loads(data)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(wakeups_before)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _become(request, *descriptors)
                for inherited in (reader, writer, requests.detach(), *descriptors):
                    os.close(inherited)
                arguments: list[str] = request["arguments"]
                return arguments
            for descriptor in descriptors:
                os.close(descriptor)
            _tell(requests, pid=pid)


def _become(request: dict[str, object], stdin: int, output: int) -> None:
    """Take on the standard streams, the environment and the directory of a command."""
    os.setpgid(0, 0)
    for descriptor, own in ((stdin, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, own)
    os.environ.clear()
    os.environ.update(request["environ"])  # type: ignore[call-overload]
    os.chdir(str(request["directory"]))


def _tell_ended(told: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(told, pid=pid, code=os.waitstatus_to_exitcode(status))


def _tell(told: socket.socket, **what: int) -> None:
    try:
        told.sendall(json.dumps(what).encode() + b"\n")
    except OSError:  # The parent is gone, which the next read says.
        return
