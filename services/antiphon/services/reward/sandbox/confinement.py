"""Gives up, one after the other, what the code under test must not have. For Linux.

Runs in the process that will run the code, before it does, and needs the standard library only.
What a kernel does not offer is left out: `Sandbox` finds out by trying which protections hold.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
from collections.abc import Sequence

_libc = ctypes.CDLL(None, use_errno=True)

# unshare(2)
_NEW_USER, _NEW_NET, _NEW_IPC, _NEW_UTS = 0x10000000, 0x40000000, 0x08000000, 0x04000000
NOBODY = 65534

# prctl(2)
_DIE_WITH_PARENT, _SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER_MODE = 1, 38, 22, 2

# Landlock, https://docs.kernel.org/userspace-api/landlock.html; the same numbers everywhere.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_RIGHTS_OF_VERSION = {1: 13, 2: 14, 3: 15, 4: 15}
_ALL_RIGHTS = 16
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE

# seccomp, https://docs.kernel.org/userspace-api/seccomp_filter.html
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _ERRNO, _NOT_PERMITTED = 0x7FFF0000, 0x80000000, 0x00050000, 1
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _FIRST_ARGUMENT_OFFSET = 0, 4, 16
_X32 = 0x40000000
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_DENIED = {  # name: (x86_64, aarch64); None where there is none
    "socket": (41, 198),
    "connect": (42, 203),
    "accept": (43, 202),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "bind": (49, 200),
    "listen": (50, 201),
    "socketpair": (53, 199),
    "accept4": (288, 242),
    "clone": (56, 220),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "kill": (62, 129),
    "ptrace": (101, 117),
    "personality": (135, 92),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "acct": (163, 89),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "finit_module": (313, 273),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "execveat": (322, 281),
    "userfaultfd": (323, 282),
    "pidfd_send_signal": (424, 424),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "pidfd_open": (434, 434),
    "clone3": (435, 435),
    "mount_setattr": (442, 442),
}
_OF_OTHERS = {"prlimit64": (302, 261)}  # allowed on the process itself, which is pid 0


def confine(
    *, memory_bytes: int, cpu_seconds: int, file_bytes: int, folder: str, readable: Sequence[str]
) -> None:
    """Confine this process for good.

    Args:
        memory_bytes: Most address space.
        cpu_seconds: Processor seconds until it is killed.
        file_bytes: Largest file that it may write.
        folder: The only folder that it may write in.
        readable: Files and folders that it may read besides.
    """
    _leave_namespaces()
    _limit(memory_bytes, cpu_seconds, file_bytes)
    _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    _libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _see_only(folder, readable)
    _refuse_system_calls()


def _leave_namespaces() -> None:
    """Namespaces of its own: no network, no shared memory of others, nobody's user.

    In a user namespace without a mapping root is nobody and has no power outside, but still reads
    a Python that only root can read. Where user namespaces are forbidden, root becomes nobody.
    """
    apart = _NEW_NET | _NEW_IPC | _NEW_UTS
    if _libc.unshare(_NEW_USER | apart) == 0 or os.geteuid() != 0:
        return
    _libc.unshare(apart)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


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
    attributes = struct.pack("QQ", handled, 0b11 if version >= 4 else 0)  # network: bind, connect
    size = 16 if version >= 4 else 8
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


def _refuse_system_calls() -> None:
    """seccomp: no sockets, processes, threads, signals to others, or privileged calls."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        return
    column = list(_ARCHITECTURES).index(machine)
    denied = [number for numbers in _DENIED.values() if (number := numbers[column]) is not None]
    program = [
        _instruction(_LOAD, _ARCHITECTURE_OFFSET),
        _instruction(_JUMP_EQUAL, _ARCHITECTURES[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER_OFFSET),
        _instruction(_JUMP_AT_LEAST, _X32, 0, 1),
        _instruction(_RETURN, _ERRNO | _NOT_PERMITTED),
    ]
    for number in denied:
        program += [
            _instruction(_JUMP_EQUAL, number, 0, 1),
            _instruction(_RETURN, _ERRNO | _NOT_PERMITTED),
        ]
    for numbers in _OF_OTHERS.values():
        program += [
            _instruction(_JUMP_EQUAL, numbers[column], 0, 4),
            _instruction(_LOAD, _FIRST_ARGUMENT_OFFSET),
            _instruction(_JUMP_EQUAL, 0, 1, 0),
            _instruction(_RETURN, _ERRNO | _NOT_PERMITTED),
            _instruction(_RETURN, _ALLOW),
        ]
    program.append(_instruction(_RETURN, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    _libc.prctl(_SET_SECCOMP, _FILTER_MODE, header, 0, 0)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
