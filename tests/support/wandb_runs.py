"""Reads what Weights & Biases wrote in offline mode."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import wandb
from wandb.proto.wandb_internal_pb2 import Record

_BLOCK = 32768


def records(directory: Path) -> list[Record]:
    """The one offline run below `directory`.

    A header of 7 bytes, then LevelDB's log format: blocks of 32 KiB with pieces of records.
    """
    wandb.teardown()  # its process has written everything once it is gone
    (file,) = directory.glob("wandb/offline-run-*/*.wandb")
    data, at = file.read_bytes(), 7
    found, whole = [], b""
    while at + 7 <= len(data):
        if _BLOCK - at % _BLOCK < 7:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a full record, or the last piece of one
            found.append(Record.FromString(whole))
            whole = b""
    return found


def of_kind(directory: Path, kind: str) -> list[Any]:
    """The messages of one kind, for example `run` or `exit`."""
    found = [record for record in records(directory) if record.WhichOneof("record_type") == kind]
    return [getattr(record, kind) for record in found]


def history(directory: Path) -> list[dict[str, Any]]:
    """Rows that were logged, each with its step."""
    return [
        {
            **{".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in row.item},
            "step": row.step.num,
        }
        for row in of_kind(directory, "history")
    ]
