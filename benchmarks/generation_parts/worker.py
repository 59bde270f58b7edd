"""A process of one side: it reads what to do as lines of JSON and answers with lines of JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, cast

import torch
from benchmarks.generation_parts.ours import Ours
from benchmarks.generation_parts.peers import Peers
from benchmarks.generation_parts.work import Lengths, Work
from transformers.utils import logging


def main(side: str, model: str, lengths: str, threads: str) -> None:
    """Serve one side until standard input ends.

    Args:
        side: ``antiphon`` or ``transformers``.
        model: A folder.
        lengths: ``fixed`` or ``mixed``.
        threads: That torch may use.
    """
    answers = sys.stdout
    sys.stdout = sys.stderr  # What libraries print is no answer.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(int(threads))
    told = cast("Lengths", lengths)
    ours = Ours(model, told) if side == "antiphon" else None
    peers = Peers(model) if side == "transformers" else None
    if ours is not None:
        ours.start()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        work, began = Work(asked["size"], told), time.process_time()
        if ours is not None:
            answer: Any = ours.run(work)
        elif asked["side"] == "check":
            assert peers is not None
            answer = {"error": peers.largest_error(work, asked["completions"])}
        else:
            answer = getattr(peers, asked["side"])(work, asked["lengths"])
        answer["cpu_seconds"] = time.process_time() - began
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
