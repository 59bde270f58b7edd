"""What the record writes at the end of a run."""

from __future__ import annotations

import json

from tests.unit.learner.record.made_record import (
    SECONDS,
    made_record,
    stepped,
    two_turns,
)

from antiphon.clients.types import RunState
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.weights.publisher import Publication


def test_the_summary_names_the_saved_agents(folder: RunFolder) -> None:
    folder.agent_folder(0).mkdir()
    folder.agent_folder(1).mkdir()
    record = made_record(folder)
    record.rolled_out(1, [two_turns()])
    record.updated([stepped(0, 0.5)])
    record.published([Publication(0, 1, 100, 0.5, 0.1)])
    record.batch_done(SECONDS)
    record.finish(RunState.FINISHED)
    summary = json.loads((folder.path / "summary.json").read_text())
    assert summary["agent_folders"] == ["agent_0", "agent_1"]
    assert summary["optimizer_steps"] == [1, 0]
    assert summary["weights_versions"] == [1, 0]
    text = (folder.path / "SUMMARY.md").read_text()
    assert "`agent_0/`" in text
    assert "`agent_1/`" in text
    # The best path: joint action 0 (return 3), then joint action 1 of its child (return 4).
    assert "### Turn 1: reward 0, return 3" in text
    assert "### Turn 2: reward 4, return 4" in text
    assert "| 1 | 1 | 0.5 | 2.5 |" in text
    assert "| 1 | 2 | 2 | 2 |" in text
    assert summary["rewards"][0] == {
        "epoch": 1,
        "turn": 1,
        "reward_mean": 0.5,
        "expected_return": 2.5,
    }


def test_the_summary_names_one_folder_for_agents_that_share_a_policy(folder: RunFolder) -> None:
    shared = MAGRPOConfig(num_turns=2, shared_policy=True)
    made_record(folder, shared).finish(RunState.FAILED)
    summary = json.loads((folder.path / "summary.json").read_text())
    assert summary["agent_folders"] == [None, None]
    assert "Load one with" not in (folder.path / "SUMMARY.md").read_text()
    folder.agent_folder(0).mkdir()
    made_record(folder, shared).finish(RunState.FINISHED)
    summary = json.loads((folder.path / "summary.json").read_text())
    assert summary["agent_folders"] == ["agent_0", "agent_0"]
    assert "| 1 | m | `agent_0/` | 0 | 0 |" in (folder.path / "SUMMARY.md").read_text()


def test_the_summary_says_how_each_kind_of_folder_loads(folder: RunFolder) -> None:
    for agent in (0, 1):
        folder.agent_folder(agent).mkdir()
    (folder.agent_folder(0) / "adapter_config.json").write_text("{}")
    (folder.path / "best").mkdir()
    made_record(folder).finish(RunState.FINISHED)
    text = (folder.path / "SUMMARY.md").read_text()
    assert '`PeftModel.from_pretrained(base, "agent_0")`' in text
    assert '`AutoModelForCausalLM.from_pretrained("agent_1")`' in text
    assert "`best/`" in text
