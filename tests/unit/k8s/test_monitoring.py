"""The committed dashboards and rules: fresh, complete, and naming metrics that are registered."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from k8s.monitoring.generate import FOLDER, files, rules
from k8s.monitoring.queries import metric_names, panel_queries, rule_queries

ROOT = FOLDER.parents[1]
BOARDS = [json.loads(path.read_text()) for path in sorted((FOLDER / "dashboards").glob("*.json"))]
BY_CLIENT_LIBRARY = re.compile(r"process_(cpu|resident|open|max|start)\w*")
PARTS_OF_HISTOGRAMS = re.compile(r"_(bucket|sum|count)$")


def defaults(panel: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = panel["fieldConfig"]["defaults"]
    return found


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def test_regenerating_changes_nothing() -> None:
    written = files()
    assert {path for path in written if path.suffix == ".json"} == set(
        (FOLDER / "dashboards").glob("*.json")
    )
    for path, text in written.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run make monitoring"


def test_uids_are_those_that_links_and_bookmarks_know() -> None:
    names = ("learning", "overview", "rollouts", "services", "weights")
    assert [board["uid"] for board in BOARDS] == [f"antiphon-{name}" for name in names]
    for board in BOARDS:
        others = {f"/d/{other['uid']}" for other in BOARDS if other is not board}
        assert {link["url"] for link in board["links"]} == others
        assert all(link["includeVars"] and link["keepTime"] for link in board["links"])


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board["uid"])
def test_every_panel_says_what_it_shows_in_which_unit_and_of_what_is_chosen(
    board: dict[str, Any],
) -> None:
    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert {"datasource", "namespace", "job"} <= variables
    used = set()
    for panel in panels(board):
        title = panel["title"]
        assert len(panel["description"]) > 10, title
        shown = panel["options"]["yAxis"] if panel["type"] == "heatmap" else defaults(panel)
        assert shown["unit"], title
        assert panel["datasource"]["uid"] == "${datasource}", title
        for target in panel["targets"]:
            expr = target["expr"]
            assert 'namespace=~"$namespace"' in expr, title
            # A range of a fixed length is empty where Prometheus scrapes seldom.
            assert set(re.findall(r"\[([^\]]+)\]", expr)) <= {"$__rate_interval"}, title
            used |= set(re.findall(r"\$(\w+)", expr)) - {"__rate_interval"}
    assert used <= variables
    assert variables - {"datasource"} <= used


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board["uid"])
def test_panels_do_not_overlap_and_have_ids_of_their_own(board: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_queries_and_rules_name_registered_metrics_and_recorded_ones() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    known = set(re.findall(r"^\| `(\w+)` \|", page, re.M))
    known |= {name for name, _ in rule_queries() if ":" in name}
    asked = [(f"{q.dashboard}, {q.panel}", q.expr) for q in panel_queries("1m")]
    for where, expr in [*asked, *rule_queries()]:
        for name in metric_names(expr):
            whole = PARTS_OF_HISTOGRAMS.sub("", name)
            assert name in known or whole in known or BY_CLIENT_LIBRARY.fullmatch(name), (
                f"{where}: {name}"
            )


def test_every_alert_has_a_page_that_names_it() -> None:
    listed = (ROOT / "docs" / "monitoring.md").read_text()
    pages = set()
    for rule in (rule for group in rules("alerts") for rule in group["rules"]):
        page = ROOT / rule["annotations"]["runbook"]
        pages.add(page)
        assert f"`{rule['alert']}`" in page.read_text()
        assert f"| `{rule['alert']}` | " in listed
        assert page.relative_to(ROOT / "docs").as_posix() in listed
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert {"summary", "description"} <= rule["annotations"].keys()
    assert pages == set((ROOT / "docs" / "runbooks").glob("*.md"))


def test_runbooks_point_at_panels_that_there_are() -> None:
    titles = {panel["title"] for board in BOARDS for panel in panels(board)}
    boards = {board["title"].removeprefix("antiphon / ") for board in BOARDS}
    for page in sorted((ROOT / "docs" / "runbooks").glob("*.md")):
        text = page.read_text()
        for name in re.findall(r"\*\*([^*]+)\*\*", text):
            assert name in boards, f"{page.name}: {name}"
        for name in re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", text):
            assert any(title.startswith(" ".join(name.split())) for title in titles), (
                f"{page.name}: {name}"
            )


def test_links_of_the_pages_lead_somewhere() -> None:
    docs = ROOT / "docs"
    for page in (docs / "monitoring.md", *(docs / "runbooks").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_paths_in_the_text_are_there() -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text()
    for name in re.findall(r"k8s/monitoring/[\w./-]+\.(?:yaml|json)", text):
        assert Path(ROOT / name).exists(), name
