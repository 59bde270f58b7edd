"""A short real training, every service a process of its own, watched by a real Prometheus.

    python -m tests.system.monitoring.watched_run docs/images/monitoring.svg

trains for a minute and draws what Prometheus saw.

The training goes on until Prometheus has seen it often enough: Prometheus takes up to five seconds
to begin with a new target, in which a fast machine trains dozens of prompts.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from k8s.monitoring.picture import draw
from tests.support.certificates import certificate, certificate_authority
from tests.support.models import save_model, tiny_model, tiny_tokenizer
from tests.support.processes import Processes, Started, wait_until
from tests.system.monitoring.prometheus import Prometheus, prometheus

ENDED_BY_SIGTERM = 143
PROMPTS = ["one red cat sings", "two blue dog replies", "three green cat was", "a b c d"]
TASK = '''
import time
import urllib.request

def reward(first, second):
    """Share of the word "a" in both answers."""
    time.sleep(0.005)
    texts = [f"{a} {b}".split() for a, b in zip(first, second)]
    return [words.count("a") / max(len(words), 1) for words in texts]

def again(prompt, num_agents):
    return [f"{prompt} again"] * num_agents
'''
RUN = """
[run]
name = "watched"
directory = "{folder}"

[magrpo]
num_turns = 2
num_train_epochs = 100000
num_generations = 4
max_new_tokens = 8
temperature = 1.0
top_k = "none"
top_p = "none"
agent_learning_rate = {learning_rate}
early_termination_threshold = "none"
max_staleness = 1
reference_kl_enabled = true
reference_kl_mode = "loss"
reference_kl_coef = 0.001
checkpoint_every_prompts = 4
eval_interval = 4
eval_num_samples = 2

[[agents]]
model = "{models}/0"
addresses = ["{agent_0}"]

[[agents]]
model = "{models}/1"
addresses = ["{agent_1}"]

[reward]
address = "{reward}"

[transition]
address = "{transition}"

[dataset]
prompts = {prompts}

[eval_dataset]
prompts = {prompts}

[server]
tls_cert = "{cert}"
tls_key = "{key}"
address_file = "{folder}/learner.address.json"
"""


@dataclass(frozen=True)
class Watched:
    """A run that has ended.

    Attributes:
        prometheus: Still up.
        since: When the training began, seconds since 1970.
        until: When it had ended.
        metrics: What /metrics of each process said while it ran, by name.
    """

    prometheus: Prometheus
    since: float
    until: float
    metrics: dict[str, str]


@contextmanager
def watched_run(folder: Path, *, scrapes: int, learning_rate: float = 0.003) -> Iterator[Watched]:
    """Trains, with Prometheus watching; the services and Prometheus are up within the block.

    Args:
        folder: Holds all that is written.
        scrapes: How often Prometheus has seen the learner train when the run is ended; once a
            second.
        learning_rate: Of every agent.
    """
    with Processes(folder) as processes, prometheus(folder, processes) as server:
        services = _services(folder, processes)
        addresses = {
            name: str(service.description(timeout=240)["metrics_address"])
            for name, service in services.items()
        }
        server.scrape(addresses)
        run_file = _run_file(folder, services, learning_rate)
        learner = processes.antiphon("learner", "train", str(run_file), cwd=folder)
        addresses["learner"] = str(learner.description(timeout=240)["metrics_address"])
        since = time.time()
        server.scrape(addresses)
        metrics = _told_while(learner, addresses)
        _wait_for_scrapes(server, learner, scrapes)
        assert learner.terminate(timeout=120) == ENDED_BY_SIGTERM, learner.log
        yield Watched(server, since, time.time(), metrics)


def _services(folder: Path, processes: Processes) -> dict[str, Started]:
    (folder / "task.py").write_text(TASK)
    tokenizer = tiny_tokenizer(folder / "tokenizer")
    for agent in range(2):
        model = tiny_model(tokenizer, agent, spread=0.05)
        save_model(folder / "models" / str(agent), model, tokenizer)
    arguments = {
        "agent-0": ("generation", "--model", str(folder / "models/0"), "--agent", "0"),
        "agent-1": ("generation", "--model", str(folder / "models/1"), "--agent", "1"),
        "reward": ("reward", "task:reward"),
        "transition": ("transition", "task:again"),
    }
    return {name: processes.serve(name, *own, cwd=folder) for name, own in arguments.items()}


def _run_file(folder: Path, services: dict[str, Started], learning_rate: float) -> Path:
    own = certificate(folder, "learner", certificate_authority(folder))
    text = RUN.format(
        folder=folder,
        models=folder / "models",
        learning_rate=learning_rate,
        prompts=json.dumps(PROMPTS),
        cert=own.cert,
        key=own.key,
        **{name.replace("-", "_"): service.address() for name, service in services.items()},
    )
    run_file = folder / "run.toml"
    run_file.write_text(text)
    return run_file


def _told_while(learner: Started, addresses: dict[str, str]) -> dict[str, str]:
    """What every process tells once some batches are trained."""

    def trained() -> bool:
        assert learner.popen.poll() is None, f"the run ended too early:\n{learner.log}"
        line = re.search(
            r"^antiphon_learner_batches_total (\S+)$", _get(addresses["learner"]), re.M
        )
        return line is not None and float(line[1]) >= 4

    wait_until(trained, timeout=300, what="four batches are trained")
    return {name: _get(address) for name, address in addresses.items()}


def _wait_for_scrapes(server: Prometheus, learner: Started, scrapes: int) -> None:
    """Returns when Prometheus has seen the learner that often from now on."""

    def seen() -> float:
        found = server.now("count_over_time(antiphon_learner_batches_total[1h])")
        return sum(float(one["value"][1]) for one in found)

    def seen_enough() -> bool:
        assert learner.popen.poll() is None, f"the run ended too early:\n{learner.log}"
        return seen() >= before + scrapes

    before = seen()
    what = f"Prometheus sees {scrapes} samples"
    wait_until(seen_enough, timeout=120 + 3 * scrapes, what=what, every=1)


def _get(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        return str(answer.read().decode())


def main() -> None:
    """Trains for a minute and draws what Prometheus saw."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("picture", type=Path, help="SVG file to write")
    parser.add_argument("--scrapes", type=int, default=60, help="how long, about one a second")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        watched_run(Path(folder), scrapes=options.scrapes) as run,
    ):
        draw(run.prometheus.url, options.picture, since=run.since, until=run.until)


if __name__ == "__main__":
    main()
