"""`antiphon report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon.clients.types import FieldError
from antiphon.learner.record.report.page import page
from antiphon.learner.record.report.run_data import read_run
from antiphon.learner.record.run_folder import write_atomically


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; RUN/report.html if none.")
    ] = None,
    trees: Annotated[
        int, typer.Option(min=0, help="Trees to browse at most, spread over the run; 0 for all.")
    ] = 100,
) -> None:
    """Write one HTML file that shows a run.

    It opens without a network.

    Curves per turn and agent, whether later answers are better, the distribution of rewards, the
    trees with their texts and scores, and time by stage. Works while the run trains, after it and
    after it was killed.

    Examples:
        antiphon report runs/demo
        antiphon report runs/demo --output demo.html --trees 0
    """
    path = run / "report.html" if output is None else output
    html = page(read_run(run), trees)
    try:
        write_atomically(path, html)
    except OSError as error:
        raise FieldError("--output", f"{path} ({error.strerror})", "a file to write") from error
    typer.echo(path)
