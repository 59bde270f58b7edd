"""`antiphon report` and `antiphon rollouts` on a run folder made by hand."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer
from tests.support.processes import run as run_process
from tests.unit.learner.record.report.made_run import make_run
from typer.testing import CliRunner, Result

from antiphon.clients.types import FieldError
from antiphon.learner.record.report.cli import report
from antiphon.learner.record.rollouts_cli import rollouts

ROOT = Path(__file__).parents[5]


class Page(HTMLParser):
    """What a page loads, its text outside scripts, and the data in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.curves: dict[str, list[str]] = {}
        self.text, self.data = "", ""
        self._within = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._within = "data" if given.get("type") == "application/json" else tag
        self.loaded += [v for k, v in attrs if k in ("src", "href") and v]

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within == "data":
            self.data += data
        elif self._within not in ("script", "style"):
            self.text += data + " "


def _command(function: object, *arguments: str) -> Result:
    app = typer.Typer()
    app.command()(function)  # type: ignore[type-var]
    return CliRunner().invoke(app, list(arguments))


def _report(folder: Path, *arguments: str) -> Page:
    result = _command(report, str(folder), *arguments)
    assert result.exit_code == 0, result.output
    return Page(Path(result.output.strip()).read_text())


def test_the_report_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    page = _report(make_run(tmp_path).path)
    html = (tmp_path / "demo" / "report.html").read_text()
    assert page.loaded == []
    assert "url(" not in html
    assert "@import" not in html
    assert "http://" not in html
    assert "https://" not in html
    assert "default-src 'none'" in html  # and the browser would refuse to


def test_the_report_says_what_happened(tmp_path: Path) -> None:
    text = " ".join(_report(make_run(tmp_path).path).text.split())
    for said in (
        "State finished",
        "Time 30 s",
        "Prompts trained 3",
        "Joint actions 12",
        "Mean reward",
        "Of 3 branches that went on, the later answers scored higher on 33%",
        "+0.25",
        "Turn 1: mean 1.83",
        "Turn 2: mean 2",
        "generate 18 s · 60%",
        "All 3 trees that were kept",
    ):
        assert said in text, f"{said!r} is not in {text}"


def test_curves_hold_the_metrics(tmp_path: Path) -> None:
    _report(make_run(tmp_path).path)
    html = (tmp_path / "demo" / "report.html").read_text()
    rewards = html[html.index("Mean reward") :]
    first, second = re.findall(r'data-x="([^"]*)" data-y="([^"]*)"', rewards)[:2]
    assert first == ("6 10 12", "0.5 4 1")
    assert second == ("6 10", "2 2")  # the third prompt had no second turn


def test_text_of_a_model_cannot_become_part_of_the_page(tmp_path: Path) -> None:
    page = _report(make_run(tmp_path).path)
    prompt = json.loads(page.data)[0]["nodes"][0]["prompts"][0]
    assert prompt == "user: </script><b>hello</b>"
    assert "hello" not in page.text


def test_a_run_that_was_killed_has_a_report(tmp_path: Path) -> None:
    page = _report(make_run(tmp_path, finished=False).path, "--trees", "1")
    assert "not ended: it still trains, or was killed" in page.text
    assert "A sample: 1 of the 3 trees kept" in page.text
    assert len(json.loads(page.data)) == 1


def test_a_run_without_any_row_or_tree_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"run_id": "r", "incarnation": 0}')
    page = _report(tmp_path, "--output", str(tmp_path / "out.html"))
    assert "No row of the metrics is written yet" in page.text
    assert "No tree is kept" in page.text


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    for command in (report, rollouts):
        assert isinstance(_command(command, str(tmp_path)).exception, FieldError)


ROW_1 = """\
epoch 1, row 1, task 7 (after 1 prompts)
  turn 1: mean reward 4, mean return 5
    agent 0 was asked; its answers taught nothing
        prompt 0
    agent 1 was asked; its answers taught nothing
        prompt 1
    [0] reward 3, return 5
      agent 0 (advantage 0, 2 tokens, log-probability -0.375, weights 1)
        20 2
      agent 1 (advantage 0, 2 tokens, log-probability -0.375, weights 1)
        20 2
      turn 2 after [0]: mean reward 2, mean return 2
        agent 0 was asked; its answers taught nothing
            prompt 0
        agent 1 was asked; its answers taught nothing
            prompt 1
        [0] reward 2, return 2
          agent 0 (advantage 0, 2 tokens, log-probability -0.375, weights 1)
            20 2
          agent 1 (advantage 0, 2 tokens, log-probability -0.375, weights 1)
            20 2
        [1] reward -, return -, no score: judge timed out
          agent 0 (advantage -, 2 tokens, log-probability -0.375, weights 1)
            21 2
          agent 1 (advantage -, 2 tokens, log-probability -0.375, weights 1)
            21 2
    [1] reward 5, return 5, ends here: truncated (agent 0: a prompt of 100 tokens)
      agent 0 (advantage 0, 2 tokens, log-probability -0.375, weights 1)
        21 2
      agent 1 (advantage 0, 2 tokens, log-probability -0.375, weights 1)
        21 2

"""


def test_rollouts_show_a_tree_with_its_texts_and_scores(tmp_path: Path) -> None:
    result = _command(rollouts, str(make_run(tmp_path).path), "--row", "1")
    assert result.exit_code == 0
    assert result.output == ROW_1


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (["--limit", "2"], [1, 2]),
        (["--limit", "0"], [0, 1, 2]),
        (["--turn", "2"], [0, 1]),
        (["--turn", "2", "--limit", "1"], [1]),
        (["--epoch", "1", "--row", "2"], [2]),
    ],
)
def test_rollouts_show_what_is_asked_for_oldest_first(
    tmp_path: Path, arguments: list[str], rows: list[int]
) -> None:
    result = _command(rollouts, str(make_run(tmp_path).path), *arguments)
    assert [int(row) for row in re.findall(r"^epoch 1, row (\d)", result.output, re.M)] == rows
    if "--turn" in arguments:
        assert "turn 1:" not in result.output


def test_rollouts_that_are_not_there_are_said_to_be_missing(tmp_path: Path) -> None:
    run = str(make_run(tmp_path).path)
    for options, why in (
        (("--epoch", "2", "--row", "0"), "training that fit --epoch 2 --row 0"),
        (("--eval",), "evaluations yet, or keep_rollouts_every keeps none"),
    ):
        result = _command(rollouts, run, *options)
        assert result.exit_code == 1
        assert result.output == f"antiphon: {run} holds no rollouts of {why}\n"


def test_rollouts_are_json_for_programs(tmp_path: Path) -> None:
    arguments = ["--limit", "0", "--turn", "2", "--json"]
    result = _command(rollouts, str(make_run(tmp_path).path), *arguments)
    nodes = [json.loads(line) for line in result.output.splitlines()]
    assert [(node["row"], node["path"]) for node in nodes] == [(0, [0]), (0, [1]), (1, [0])]
    action = nodes[0]["joint_actions"][1]
    assert (action["reward"], action["return"], action["answers"][0]["return"]) == (4.0, 4.0, 4.0)


@pytest.mark.parametrize(
    "module", ["antiphon.learner.record.report.cli", "antiphon.learner.record.rollouts_cli"]
)
def test_looking_at_a_run_needs_no_torch(module: str) -> None:
    code = (
        f"import sys, {module};"
        "heavy = {'torch', 'transformers', 'datasets'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    run_process([sys.executable, "-c", code], cwd=ROOT)


def test_a_report_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    output = str(tmp_path / "file" / "report.html")
    failed = _command(report, str(make_run(tmp_path / "run").path), "-o", output).exception
    assert isinstance(failed, FieldError)
    assert f"--output: got {output}" in str(failed)


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("run.json", '{"run_', "run.json: got damaged JSON"),
        ("run.json", "{}", "run.json: got no run_id"),
        ("config.json", "[1]", "config.json: got JSON that is no object"),
        ("summary.json", "\0\0", "summary.json: got damaged JSON"),
        ("metrics.jsonl", '{"epoch": 1\n{}\n', "metrics.jsonl, line 1: got damaged JSON"),
        ("metrics.jsonl", '{"epoch": 1}\n', "line 1: got no joint_actions, prompts, time"),
    ],
)
def test_a_damaged_file_of_a_run_is_named(
    tmp_path: Path, file: str, text: str, problem: str
) -> None:
    folder = make_run(tmp_path).path
    (folder / file).write_text(text)
    failed = _command(report, str(folder)).exception
    assert isinstance(failed, FieldError)
    assert problem in str(failed)


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path).path
    before = _report(folder).text
    with (folder / "metrics.jsonl").open("a") as rows:
        rows.write('{"joint_actions": 12, "ep')
    assert _report(folder).text == before


def test_a_damaged_file_of_rollouts_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    part = sorted((folder.path / "rollouts").glob("*.parquet"))[0]
    part.write_bytes(part.read_bytes()[:-20])
    for command in (report, rollouts):
        result = _command(command, str(folder.path))
        assert isinstance(result.exception, FieldError)
        assert str(part) in str(result.exception)
