"""`antiphon rollouts`."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from antiphon.learner.record.rollout_reader import Tree, read_trees
from antiphon.learner.record.rollout_rows import EVAL, TRAIN
from antiphon.learner.record.rollouts_view import node_json, tree_lines
from antiphon.learner.record.run_folder import RunFolder


def rollouts(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    epoch: Annotated[int | None, typer.Option(min=1, help="Only this epoch.")] = None,
    row: Annotated[int | None, typer.Option(min=0, help="Only this row of the dataset.")] = None,
    turn: Annotated[int | None, typer.Option(min=1, help="Only nodes of this turn.")] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Show so many trees, the newest ones; 0 for all.")
    ] = 3,
    evaluation: Annotated[
        bool, typer.Option("--eval", help="Trees of evaluations instead of training.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="A node as JSON per line, for programs.")
    ] = False,
) -> None:
    """Show what the agents of a run answered and earned.

    Works while the run trains, after it and after it was killed.

    Examples:
        antiphon rollouts runs/demo
        antiphon rollouts runs/demo --row 1 --limit 0 | less -R
        antiphon rollouts runs/demo --epoch 1 --turn 2
        antiphon rollouts runs/demo --limit 0 --json > rollouts.jsonl
    """
    found = read_trees(
        RunFolder.open(run).rollouts_folder,
        phase=EVAL if evaluation else TRAIN,
        epoch=epoch,
        row=row,
        newest_first=True,
    )
    wanted = (tree for tree in found if turn is None or any(node.turn == turn for node in tree))
    trees: list[Tree] = list(islice(wanted, limit or None))
    if not trees:
        options = {"--epoch": epoch, "--row": row, "--turn": turn}
        asked = " ".join(f"{name} {value}" for name, value in options.items() if value is not None)
        kind = "evaluations" if evaluation else "training"
        why = f"that fit {asked}" if asked else "yet, or keep_rollouts_every keeps none"
        typer.echo(f"antiphon: {run} holds no rollouts of {kind} {why}", err=True)
        raise typer.Exit(1)
    for tree in reversed(trees):
        if as_json:
            for node in tree:
                if turn is None or node.turn == turn:
                    typer.echo(json.dumps(node_json(node), ensure_ascii=False))
            continue
        for line in tree_lines(tree, turn, typer.style):
            typer.echo(line)
        typer.echo()
