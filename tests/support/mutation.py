"""Makes messages that nobody means: of random fields, and damaged bytes of good ones.

Everything follows from the `random.Random` that is given, so an input is known by its seed.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_TEXTS = ("", "a", "0", "\x00", "\u202e", "\U0001f600" * 9, "../../etc/passwd", "%s%n", "x" * 5000)
_INTEGERS = (0, 1, 2, 3, 7, 255, 256, 65_535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
_NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))
_SIGNED = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def random_message(descriptor: Descriptor, chance: random.Random, depth: int = 0) -> Message:
    """A message of a type, with fields of any value and number."""
    message: Message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if chance.random() < (0.3 if depth < 5 else 0.9):
            continue
        _set(message, field, chance, depth)
    return message


def changed(message: Message, chance: random.Random) -> Message:
    """A copy of a message in which a few fields, at any depth, have other values or none."""
    copy = type(message)()
    copy.CopyFrom(message)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        place = _somewhere(copy, chance)
        fields = place.DESCRIPTOR.fields
        if not fields:
            continue
        field = chance.choice(fields)
        if chance.random() < 0.3:
            place.ClearField(field.name)
        else:
            _set(place, field, chance, 2)
    return copy


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bytes that differ: bits turned, bytes lost, doubled, moved, or cut off."""
    damage = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(len(damage) + 1)
        match chance.randrange(6):
            case 0 if damage:
                damage[at % len(damage)] ^= 1 << chance.randrange(8)
            case 1:
                del damage[at : at + chance.choice((1, 2, 8, 64))]
            case 2:
                damage[at:at] = chance.randbytes(chance.choice((1, 2, 8, 64)))
            case 3:
                damage[at:at] = damage[at : at + chance.choice((1, 8, 64))]
            case 4:
                del damage[at:]
            case _:
                damage[at : at + 8] = struct.pack("<Q", chance.choice(_INTEGERS) & (2**64 - 1))
    return bytes(damage)


def inputs(good: Sequence[Message], chance: random.Random) -> bytes:
    """One input for an RPC whose good requests are given."""
    example = chance.choice(good)
    match chance.randrange(4):
        case 0:
            return random_message(example.DESCRIPTOR, chance).SerializeToString()
        case 1:
            return damaged(example.SerializeToString(), chance)
        case 2:
            return damaged(changed(example, chance).SerializeToString(), chance)
        case _:
            return changed(example, chance).SerializeToString()


def _somewhere(message: Message, chance: random.Random) -> Message:
    """The message, or one inside it."""
    inner: list[Message] = []
    for field, value in message.ListFields():
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            continue
        if field.message_type.GetOptions().map_entry:
            continue
        inner += [value] if isinstance(value, Message) else list(value)
    if not inner or chance.random() < 0.3:
        return message
    return _somewhere(chance.choice(inner), chance)


def _set(message: Message, field: FieldDescriptor, chance: random.Random, depth: int) -> None:
    repeated = field.is_repeated
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        if field.message_type.GetOptions().map_entry:
            return
        if depth > 6:
            return
        made = [
            random_message(field.message_type, chance, depth + 1)
            for _ in range(chance.choice((1, 1, 2, 3)) if repeated else 1)
        ]
        if repeated:
            getattr(message, field.name).extend(made)
        else:
            getattr(message, field.name).CopyFrom(made[0])
        return
    if repeated:
        values = [_value(field, chance) for _ in range(chance.choice((0, 1, 2, 40)))]
        message.ClearField(field.name)
        getattr(message, field.name).extend(values)
    else:
        setattr(message, field.name, _value(field, chance))


def _value(field: FieldDescriptor, chance: random.Random) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return chance.choice([*field.enum_type.values_by_number, 99])
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return chance.choice((*_NUMBERS, chance.uniform(-10, 10)))
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return chance.choice((b"", b"{}", b"[" * 3000, b'{"a":1e999}', chance.randbytes(16)))
        return chance.choice(_TEXTS)
    low, high = _SIGNED[kind]
    return max(low, min(high, chance.choice((*_INTEGERS, -1, chance.randrange(100)))))
