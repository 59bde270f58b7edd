"""Inputs that once ended otherwise than they should: kept as bytes, and tried every time.

    found/KIND/NAME.hex     a message, or the content of a file, per line

A test that fails writes its input there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).parent / "found"


def found(kind: str) -> dict[str, list[bytes]]:
    """All inputs of a kind, by name."""
    return {
        path.stem: [bytes.fromhex(line) for line in path.read_text().splitlines()]
        for path in sorted((FOLDER / kind).glob("*.hex"))
    }


def keep(kind: str, name: str, messages: Sequence[bytes]) -> Path:
    """Keep an input; where it is now."""
    path = FOLDER / kind / f"{name}.hex"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{message.hex()}\n" for message in messages))
    return path


@contextmanager
def kept_if_it_fails(kind: str, name: str, messages: Sequence[bytes]) -> Iterator[None]:
    """Keep the input that the block is about, where the block raises."""
    try:
        yield
    except Exception as error:
        error.add_note(f"the input is kept in {keep(kind, name, messages)}")
        raise
