"""Gives up, one after the other, what the code under test must not have. For Linux.

Runs in the process that will run the code, before it does, and needs the standard library only.
What a kernel does not offer is left out: `Sandbox` finds out by trying which protections hold.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Sequence

import system_calls  # type: ignore[import-not-found]  # beside it, and nothing else is there

_libc = ctypes.CDLL(None, use_errno=True)

NOBODY = 65534

# unshare(2)
_NEW_USER, _NEW_NET, _NEW_IPC, _NEW_UTS, _NEW_NS = 1 << 28, 1 << 30, 1 << 27, 1 << 26, 1 << 17

# mount(2)
_NO_SUID, _NO_DEVICES, _NO_PROGRAMS, _RECURSIVE, _PRIVATE = 2, 4, 8, 1 << 14, 1 << 18

# prctl(2)
_DIE_WITH_PARENT, _SET_NO_NEW_PRIVILEGES = 1, 38

# Landlock, https://docs.kernel.org/userspace-api/landlock.html; the same numbers everywhere.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_RIGHTS_OF_VERSION = {1: 13, 2: 14, 3: 15, 4: 15}
_ALL_RIGHTS = 16
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_BIND_AND_CONNECT, _ABSTRACT_SOCKETS_AND_SIGNALS = 0b11, 0b11


def confine(
    *,
    memory_bytes: int,
    cpu_seconds: int,
    file_bytes: int,
    folder_bytes: int,
    folder: str,
    readable: Sequence[str],
) -> None:
    """Confine this process for good; it is in its folder then.

    Args:
        memory_bytes: Most address space.
        cpu_seconds: Processor seconds until it is killed.
        file_bytes: Largest file that it may write.
        folder_bytes: Most bytes of all its files, where its folder can be in memory.
        folder: The only folder that it may write in.
        readable: Files and folders that it may read besides.
    """
    _leave_namespaces(folder, folder_bytes)
    os.chdir(folder)
    _limit(memory_bytes, cpu_seconds, file_bytes)
    _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    _libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _see_only(folder, readable)
    system_calls.refuse_others()


def _leave_namespaces(folder: str, folder_bytes: int) -> None:
    """Namespaces of its own: no network, nobody's user, and its folder a small one in memory.

    In a user namespace root is nobody and has no power outside, but still reads a Python that only
    root can read. Where user namespaces are forbidden, root becomes nobody.
    """
    apart = _NEW_NET | _NEW_IPC | _NEW_UTS | _NEW_NS
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_NEW_USER | apart) == 0:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{NOBODY} {user} 1")
        _write("/proc/self/gid_map", f"{NOBODY} {group} 1")
        _mount_memory(folder, folder_bytes)
    elif user == 0:
        if _libc.unshare(apart) == 0:
            _mount_memory(folder, folder_bytes)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:  # noqa: PTH123 - the process does without what it can
            file.write(text)
    except OSError:
        return  # the kernel does not let it; what then does not hold is found by trying


def _mount_memory(folder: str, folder_bytes: int) -> None:
    _libc.mount(None, b"/", None, _RECURSIVE | _PRIVATE, None)
    flags = _NO_SUID | _NO_DEVICES | _NO_PROGRAMS
    options = f"size={folder_bytes},nr_inodes=1000,mode=777".encode()
    _libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, options)


def _limit(memory_bytes: int, cpu_seconds: int, file_bytes: int) -> None:
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))


def _see_only(folder: str, readable: Sequence[str]) -> None:
    """Landlock: read what Python needs, write in one folder, see nothing else of the files."""
    version = _libc.syscall(_CREATE_RULESET, None, 0, _VERSION)
    if version < 1:
        return
    handled = (1 << _RIGHTS_OF_VERSION.get(version, _ALL_RIGHTS)) - 1
    network = _BIND_AND_CONNECT if version >= 4 else 0
    scoped = _ABSTRACT_SOCKETS_AND_SIGNALS if version >= 6 else 0
    attributes = struct.pack("QQQ", handled, network, scoped)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, size, 0)
    if ruleset < 0:
        return
    for path in readable:
        _grant(ruleset, path, (_READ_FILE | _READ_DIR) & handled)
    _grant(ruleset, folder, handled & ~_EXECUTE)
    _libc.syscall(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _grant(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not on this machine
    if not os.path.isdir(path):  # noqa: PTH112 - the process does without what it does not need
        rights &= _FILE_RIGHTS
    rule = struct.pack("=Qi", rights, descriptor)
    _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    os.close(descriptor)
