"""Damaged files: other bytes, other values, other names; first those that were found before."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.found import found, kept_if_it_fails
from tests.support.mutation import damaged

INPUTS = int(os.environ.get("FUZZ_INPUTS", "400"))
FIRST_SEED = int(os.environ.get("FUZZ_SEED", "0"))
SHARE_OF_VALUES = 0.5
"""Of the inputs, how many have other values or names where a file's form is known."""

NAMES = ("modle", "__class__", "x.y", "")
TOML_VALUES = (
    "-1",
    "0",
    "1e999",
    "nan",
    "''",
    "'../..'",
    "[]",
    "{}",
    "true",
    "[[1]]",
    "'\\u0000'",
    "9" * 40,
)
JSON_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 5, 300, 0.5, float("inf"), float("nan")),
    *("", "x", "../..", "\0", [], {}, [[1]]),
)
LENGTH_BYTES = 8
"""Of the length of a safetensors header, which is JSON."""


@dataclass(frozen=True)
class Damaged:
    """A damaged file.

    Attributes:
        kind: What it is read as.
        file: Name of the file that is damaged.
        seed: Of the damage, or what it was when it was found.
        data: What the file holds now.
    """

    kind: str
    file: str
    seed: str
    data: bytes

    def kept_if_it_fails(self) -> AbstractContextManager[None]:
        """Keep it where the block raises."""
        name = f"{_plain(self.file)}-{self.seed}"
        return kept_if_it_fails(self.kind, name, [self.data])


def damaged_files(kind: str, good: Mapping[str, bytes], inputs: int = INPUTS) -> Iterator[Damaged]:
    """Those that were found, then as many as there are inputs.

    Args:
        kind: Of the files, as the found ones are kept.
        good: Files as they should be, by name.
        inputs: How many are made.
    """
    names = {_plain(name): name for name in good}
    for kept, messages in found(kind).items():
        file, _, seed = kept.rpartition("-")
        yield Damaged(kind, names.get(file, file), seed, b"".join(messages))
    for number in range(FIRST_SEED, FIRST_SEED + inputs):
        chance = random.Random(f"{kind} {number}")
        file = chance.choice(sorted(good))
        yield Damaged(kind, file, str(number), _damage(Path(file).suffix, good[file], chance))


def _plain(name: str) -> str:
    return name.replace("/", "_")


def _damage(suffix: str, data: bytes, chance: random.Random) -> bytes:
    changes = {".toml": _changed_line, ".json": _changed_json, ".safetensors": _changed_header}
    if suffix in changes and chance.random() < SHARE_OF_VALUES:
        return changes[suffix](data, chance)
    return damaged(data, chance)


def _changed_line(data: bytes, chance: random.Random) -> bytes:
    """The same TOML with one setting given another value, or under another name."""
    lines = data.decode().splitlines()
    places = [n for n, line in enumerate(lines) if " = " in line]
    at = chance.choice(places)
    name, _, value = lines[at].partition(" = ")
    if chance.random() < 0.3:
        name = chance.choice((*NAMES, '""', name * 2))
    else:
        value = chance.choice(TOML_VALUES)
    lines[at] = f"{name} = {value}"
    return "\n".join(lines).encode()


def _changed_json(data: bytes, chance: random.Random) -> bytes:
    """The same JSON with one value, at any depth, another one, gone, or under another name."""
    tree = json.loads(data)
    place, key = chance.choice(list(_places(tree)))
    match chance.randrange(4):
        case 0:
            del place[key]
        case 1 if isinstance(place, dict):
            place[chance.choice(NAMES)] = place.pop(key)
        case _:
            place[key] = chance.choice(JSON_VALUES)
    return json.dumps(tree).encode()


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in inside:
        yield tree, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def _changed_header(data: bytes, chance: random.Random) -> bytes:
    end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    header = _changed_json(data[LENGTH_BYTES:end], chance)
    return len(header).to_bytes(LENGTH_BYTES, "little") + header + data[end:]
