"""seccomp: the system calls that a Python without network, processes and threads lives with.

All others, those of kernels to come too, answer "not permitted".
https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import ctypes
import platform
import struct

_SET_SECCOMP, _FILTER_MODE = 22, 2  # prctl(2)
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _KILL, _NOT_PERMITTED = 0x7FFF0000, 0x80000000, 0x00050000 | 1
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Without files: memory, time, signals to itself, what it may know of itself, its descriptors.
# With files Landlock decides which; modes, owners, times and attributes, which it does not
# guard, cannot be changed at all.
_ALLOWED = {
    "x86_64": (
        *(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 22, 23, 24),
        *(25, 26, 27, 28, 32, 33, 35, 36, 37, 38, 39, 40, 60, 63, 73, 74, 75, 76, 77, 78, 79, 80),
        *(81, 82, 83, 84, 85, 86, 87, 88, 89, 95, 96, 97, 98, 99, 100, 102, 104, 107, 108, 110),
        *(111, 115, 118, 120, 127, 128, 131, 137, 138, 158, 186, 201, 202, 204, 213, 217, 218),
        *(219, 221, 228, 229, 230, 231, 232, 233, 257, 258, 262, 263, 264, 265, 266, 267, 269),
        *(270, 271, 273, 281, 285, 291, 292, 293, 295, 296, 309, 316, 318, 326, 332, 334, 436),
        *(437, 439),
    ),
    "aarch64": (
        *(17, 20, 21, 22, 23, 24, 32, 34, 35, 36, 37, 38, 43, 44, 45, 46, 47, 48, 49, 50, 56, 57),
        *(59, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 78, 79, 80, 81, 82, 83, 93, 94),
        *(96, 98, 99, 100, 101, 102, 103, 113, 114, 115, 123, 124, 128, 132, 133, 134, 135, 136),
        *(137, 139, 148, 150, 153, 155, 156, 158, 160, 163, 165, 166, 168, 169, 172, 173, 174),
        *(175, 176, 177, 178, 179, 214, 215, 216, 222, 223, 226, 227, 232, 233, 276, 278, 285),
        *(291, 293, 436, 437, 439),
    ),
}
# By number, the argument that decides and the values that pass.
_FCNTL = (1, (0, 1, 2, 3, 4, 5, 6, 7, 1030))  # none that has signals sent
_IOCTL = (1, (0x5401, 0x5413, 0x541B, 0x5450, 0x5451))
_PRLIMIT = (0, (0,))  # its own
_LIMITED = {
    "x86_64": {72: _FCNTL, 16: _IOCTL, 302: _PRLIMIT},
    "aarch64": {25: _FCNTL, 29: _IOCTL, 261: _PRLIMIT},
}


def refuse_others() -> None:
    """Refuse this process all other system calls, for good; nothing on another processor."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        return
    program = [
        _instruction(_LOAD, _ARCHITECTURE_OFFSET),
        _instruction(_JUMP_EQUAL, _ARCHITECTURES[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER_OFFSET),
    ]
    for number in _ALLOWED[machine]:
        program += _allow(number)
    for number, (argument, values) in _LIMITED[machine].items():
        passes = [part for value in values for part in _allow(value)]
        program += [
            _instruction(_JUMP_EQUAL, number, 0, len(passes) + 2),
            _instruction(_LOAD, _ARGUMENTS_OFFSET + 8 * argument),
            *passes,
            _instruction(_RETURN, _NOT_PERMITTED),
        ]
    program.append(_instruction(_RETURN, _NOT_PERMITTED))
    code = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    ctypes.CDLL(None).prctl(_SET_SECCOMP, _FILTER_MODE, header, 0, 0)


def _allow(value: int) -> list[bytes]:
    return [_instruction(_JUMP_EQUAL, value, 0, 1), _instruction(_RETURN, _ALLOW)]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
