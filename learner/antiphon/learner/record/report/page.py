"""Puts the page of a report together."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files

from antiphon.learner.record.report import sections
from antiphon.learner.record.report.run_data import RunData
from antiphon.learner.record.report.statistics import comparisons, distributions
from antiphon.learner.record.report.trees import shown_trees


def page(run: RunData, most_trees: int) -> str:
    """The whole page.

    Args:
        run: The run.
        most_trees: Trees to browse at most, 0 for all.
    """
    trees = shown_trees(run.rollouts, most_trees)
    parts = [
        sections.head(run),
        sections.curves(run),
        sections.compared(comparisons(run.tree_rewards())),
        sections.shares(distributions(run.tree_rewards())),
        sections.browser(trees),
        sections.time(run),
        sections.settings(run),
    ]
    # Data must not end the script that holds it.
    data = json.dumps(trees.values, ensure_ascii=False, separators=(",", ":"))
    data = data.replace("<", "\\u003c")
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
        f"<title>{escape(run.name)} - antiphon report</title>"
        f"<style>{_asset('style.css')}</style></head><body>"
        f"<main>{''.join(parts)}</main>"
        f'<script type="application/json" id="trees">{data}</script>'
        f"<script>{_asset('page.js')}</script></body></html>\n"
    )


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
