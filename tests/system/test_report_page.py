"""The report in a real browser: its script runs, and draws the tree that is picked."""

import re
import subprocess
from html import unescape
from pathlib import Path

import pytest
from tests.unit.learner.record.report.made_run import make_run

from antiphon.learner.record.report.page import page
from antiphon.learner.record.report.run_data import read_run

pytestmark = pytest.mark.system


def test_a_browser_draws_the_trees(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(read_run(make_run(tmp_path).path), 2))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    done = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'profile'}", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    body = done.stdout.partition("<main>")[2].partition("</main>")[0]
    options = [unescape(option) for option in re.findall(r"<option[^>]*>(.*?)</option>", body)]
    assert options == [
        "epoch 1, row 0, reward 0.5: user: </script><b>hello</b>",
        "epoch 1, row 2, reward 1: prompt 0",
    ]
    browser = re.sub(r"<[^>]+>", " ", body[body.index('id="browser"') :])
    # The newest tree is open: two joint actions of reward 1, nothing after them.
    assert browser.count("reward 1") == 2
    assert "agent 1 was asked (its answers taught nothing)" in browser
    assert "21 2" in browser
