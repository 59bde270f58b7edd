"""The learning benchmark's arithmetic: its reward, and what it reads from runs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import learning
from benchmarks.learning_parts import figures, page, sources, task

SETTINGS = task.Settings(prompts=20, num_generations=2)


def told(
    rewards: list[float], arm: str = "antiphon-plain", pace: float = 1.0, load: float = 1.0
) -> figures.Run:
    """A run whose joint actions of a prompt all earn the same; a prompt takes `pace` seconds."""
    moments = [10.0 + pace * (i + 1) for i in range(len(rewards))]
    return figures.read_run(
        {
            "arm": arm,
            "seed": 0,
            "rewards": [one for one in rewards for _ in range(SETTINGS.joint_actions_per_prompt)],
            "seconds": [10.0, *moments],
            "cpu": [20.0, *moments],
            "load": [load],
            "optimizer_steps": [40, 40],
        },
        SETTINGS,
    )


@pytest.mark.parametrize(
    ("answers", "reward"),
    [
        (("wave salt", "fish ship"), 1.0),
        (("wave salt fish ship", "wave salt fish ship"), 0.5),
        (("wave wave", "hay"), (1 - 0.5 * 2) / 4),
        (("", ""), 0.0),
    ],
)
def test_the_reward_wants_every_word_once(answers: tuple[str, str], reward: float) -> None:
    assert task.score("sea", answers) == pytest.approx(reward)


def test_turns_are_told_apart_by_their_place_in_the_prompt() -> None:
    rewards = [[1.0, 1.0, 0.0, 0.0, 0.0, 0.0]] * SETTINGS.prompts
    run = figures.read_run(
        {
            "arm": "comlrl-plain",
            "seed": 0,
            "rewards": [one for prompt in rewards for one in prompt],
            "seconds": [0.5] * 21,
            "cpu": [0.5] * 21,
            "load": [1.0],
            "optimizer_steps": [1],
        },
        SETTINGS,
    )
    assert run.turns.tolist() == [[1.0] * 20, [0.0] * 20]


def test_the_level_is_reached_when_the_last_ten_prompts_average_it() -> None:
    run = told([0.0] * 5 + [figures.LEVEL + 0.5] * 15)
    # Of any ten prompts, those with the high reward must carry LEVEL / (LEVEL + 0.5) of them.
    high = int(np.ceil(10 * figures.LEVEL / (figures.LEVEL + 0.5)))
    assert run.reached == max(10, 5 + high)
    until = figures.until_level(run, SETTINGS)
    assert until["samples"] == run.reached * 6
    assert until["seconds"] == 10 + run.reached
    assert until["seconds_after_start"] == run.reached


def test_a_run_that_never_gets_there_counts_in_full() -> None:
    run = told([figures.LEVEL - 0.01] * 20)
    assert run.reached is None
    assert figures.until_level(run, SETTINGS)["samples"] == 120


def test_sides_are_compared_seed_by_seed() -> None:
    ours, peer = told([1.0] * 20), told([1.0] * 20, arm="comlrl-plain", pace=4.0)
    one = figures.compared([ours], [peer], SETTINGS)
    assert one["samples_difference"]["mean"] == 0
    assert one["seconds_ratio_after_start"]["mean"] == pytest.approx(1 / 4)
    assert one["seconds_ratio"]["mean"] == pytest.approx(20 / 50)


def test_seconds_are_those_of_quiet_runs_and_samples_those_of_all() -> None:
    busy = told([0.0] * 5 + [1.0] * 15, pace=9.0, load=figures.QUIET + 1)
    figures_of = figures.of_arm([told([1.0] * 20), busy], SETTINGS)
    assert figures_of["timed"] == {"runs": 1, "quiet": True}
    assert figures_of["until_level"]["seconds"]["mean"] == 20
    # Eight of any ten prompts with 1 average 0.8, the first multiple of 0.1 at the level or above.
    assert figures_of["until_level"]["samples"]["mean"] == pytest.approx(6 * (10 + 13) / 2)
    only_busy = figures.of_arm([busy], SETTINGS)
    assert only_busy["timed"] == {"runs": 1, "quiet": False}


def test_an_arm_that_scored_less_is_refused() -> None:
    with pytest.raises(ValueError, match="not 120"):
        figures.read_run({"arm": "a", "seed": 1, "rewards": [0.0], "seconds": [0.0]}, SETTINGS)


def found(settings: task.Settings = SETTINGS, **arms: str) -> dict[str, Any]:
    """A result whose arms ran on the named processors."""
    return {
        "settings": asdict(settings),
        "level": figures.LEVEL,
        "baseline": "CoMLRL",
        "arms": {arm: {"machine": {"processor": where}} for arm, where in arms.items()},
        "compared": {arm: {"with": where} for arm, where in arms.items()},
    }


def test_arms_that_did_not_run_keep_what_was_found_before() -> None:
    kept = learning.with_kept(found(a="new"), found(a="old", b="old"))
    assert {arm: one["machine"]["processor"] for arm, one in kept["arms"].items()} == {
        "a": "new",
        "b": "old",
    }
    assert kept["compared"] == {"a": {"with": "new"}, "b": {"with": "old"}}
    with pytest.raises(ValueError, match="of another settings; run every arm anew"):
        learning.with_kept(found(a="new"), found(task.SETTINGS, b="old"))


def test_the_page_tells_which_arms_ran_on_which_processor() -> None:
    result = json.loads(learning.RESULTS.read_text())
    alike = {
        **result,
        "arms": {n: {**a, "machine": {"processor": "P"}} for n, a in result["arms"].items()},
    }
    assert "All arms ran on a machine with the processor P." in page.tables(alike)
    first, *others = result["arms"]
    alike["arms"][first] = {**alike["arms"][first], "machine": {"processor": "Q"}}
    assert f"Processors: {first} on Q; {', '.join(others)} on P." in page.tables(alike)


def test_a_run_of_other_sources_is_run_again(tmp_path: Path) -> None:
    out = tmp_path / "antiphon-plain-0.json"
    assert not learning.usable(out, "aaa")
    out.write_text(json.dumps({"code": "aaa"}))
    assert learning.usable(out, "aaa")
    assert not learning.usable(out, "bbb")
    out.write_text(json.dumps({}))
    assert not learning.usable(out, "aaa"), "nobody knows what it ran"
    assert learning.usable(out, None), "CoMLRL's are of one version"


def test_the_digest_is_of_the_sources_that_antiphon_runs(tmp_path: Path) -> None:
    for folder in (*sources.FOLDERS, "benchmarks"):
        (tmp_path / folder).mkdir()
    code = tmp_path / "learner" / "loss.py"
    code.write_text("a = 1\n")
    first = sources.digest(tmp_path)
    (tmp_path / "benchmarks" / "load.py").write_text("a = 1\n")
    (tmp_path / "learner" / "notes.md").write_text("a = 1\n")
    assert sources.digest(tmp_path) == first
    code.write_text("a = 2\n")
    second = sources.digest(tmp_path)
    moved = code.rename(tmp_path / "services" / "loss.py")
    third = sources.digest(tmp_path)
    assert len({first, second, third}) == 3
    moved.rename(code)
    code.write_text("a = 1\n")
    assert sources.digest(tmp_path) == first


def test_an_arm_tells_the_code_of_its_runs() -> None:
    runs = [replace(told([1.0] * 20), code=code) for code in ("bbb", "aaa", "bbb")]
    assert figures.of_arm(runs, SETTINGS)["code"] == ["aaa", "bbb"]
    assert figures.of_arm([told([1.0] * 20, arm="comlrl-plain")], SETTINGS)["code"] == []


def test_the_page_tells_which_arms_ran_other_code() -> None:
    result = json.loads(learning.RESULTS.read_text())

    def of_codes(codes: dict[str, list[str]]) -> str:
        arms = {n: {**a, "code": codes.get(n, [])} for n, a in result["arms"].items()}
        return page.tables({**result, "arms": arms})

    same = of_codes({name: ["aaa"] for name in result["arms"]})
    assert "All arms of antiphon ran the same code, aaa (a digest of its sources)." in same
    other = of_codes({"antiphon-plain": ["aaa", "bbb"], "antiphon-defaults-sampled": ["bbb"]})
    assert (
        "Code of antiphon (digests of its sources): antiphon-plain aaa and bbb; "
        "antiphon-defaults-sampled bbb; antiphon-defaults-full unknown. "
        "Arms of other code differ by that too." in other
    )
    assert "Which code of antiphon ran was not written down." in of_codes({})
