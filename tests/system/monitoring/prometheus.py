"""A real Prometheus, and what it is asked."""

from __future__ import annotations

import json
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from k8s.monitoring.generate import FOLDER, RULES
from tests.support.processes import Processes, wait_until

LISTENING = re.compile(r'msg="Listening on" address=(127\.0\.0\.1:\d+)')

Series = dict[str, Any]
"""Of a range: `metric` (its labels) and `values` ([time, text])."""


@dataclass
class Prometheus:
    """A Prometheus server that scrapes what `targets_file` says."""

    url: str
    targets_file: Path

    def scrape(self, addresses: dict[str, str]) -> None:
        """Scrape these "host:port", by name."""
        targets = [
            {"targets": [own], "labels": {"job": name, "instance": name}}
            for name, own in addresses.items()
        ]
        part = self.targets_file.with_suffix(".part")
        part.write_text(json.dumps(targets))
        part.replace(self.targets_file)

    def get(self, path: str, **parameters: Any) -> Any:
        """The data of an answer of its API; AssertionError with what it says is wrong."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def over(self, query: str, since: float, until: float, step: float = 1.0) -> list[Series]:
        """A query's series over a range of time."""
        data = self.get("query_range", query=query, start=since, end=until, step=step)
        result: list[Series] = data["result"]
        return result

    def now(self, query: str) -> list[Series]:
        """A query's series at this moment."""
        result: list[Series] = self.get("query", query=query)["result"]
        return result


@contextmanager
def prometheus(folder: Path, processes: Processes, *, seconds: float = 1.0) -> Iterator[Prometheus]:
    """Debian's Prometheus on a free port, with the rules of this repository.

    Args:
        folder: Holds its configuration and its data.
        processes: Starts and ends it.
        seconds: Between two scrapes, and between two evaluations of the rules.
    """
    every = f"{seconds:g}s"
    targets = folder / "targets.json"
    targets.write_text("[]")
    rules = folder / "rules"
    shutil.copytree(FOLDER / "rules", rules)
    config = {
        "global": {"scrape_interval": every, "evaluation_interval": every},
        "rule_files": [str(rules / f"{name}.yaml") for name in RULES],
        "scrape_configs": [
            {
                "job_name": "antiphon",
                "scrape_timeout": every,
                "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
            }
        ],
    }
    config_file = folder / "prometheus.yaml"
    config_file.write_text(yaml.safe_dump(config))
    started = processes.start(
        "prometheus",
        [
            "prometheus",
            f"--config.file={config_file}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--web.listen-address=127.0.0.1:0",
        ],
    )
    wait_until(lambda: bool(LISTENING.search(started.log)), timeout=60, what="Prometheus listens")
    found = LISTENING.search(started.log)
    assert found is not None
    url = f"http://{found[1]}"
    wait_until(lambda: _ready(url), timeout=60, what="Prometheus is ready")
    yield Prometheus(url, targets)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
            return True
    except OSError:
        return False
