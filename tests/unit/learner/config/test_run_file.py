"""A run as TOML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.clients.types import FieldError
from antiphon.learner.config.run_file import RunConfig, load_run_config

RUN = """
[magrpo]
num_turns = 2
num_train_epochs = 1
top_k = "none"
early_termination_threshold = "none"

[[agents]]
model = "model-a"
addresses = ["localhost:50051", {address = "gpu:50051", insecure = true}]

[[agents]]
model = "model-b"
learning_rate = 1e-4

[reward]
function = "tasks:reward"

[transition]
address = "localhost:50062"

[dataset]
prompts = ["a", "b"]
"""


def _load(tmp_path: Path, text: str = RUN, *overrides: str, **environ: str) -> RunConfig:
    file = tmp_path / "run.toml"
    file.write_text(text)
    return load_run_config(file, overrides=overrides, environ=environ)


def test_a_run_is_read_from_toml(tmp_path: Path) -> None:
    config = _load(tmp_path)
    assert config.num_agents == 2
    assert config.magrpo.num_train_epochs == 1
    assert config.magrpo.top_k is None
    assert config.magrpo.early_termination_threshold is None
    assert [e.address for e in config.agents[0].addresses] == ["localhost:50051", "gpu:50051"]
    assert config.agents[1].addresses == ()
    assert [config.learning_rate(agent) for agent in (0, 1)] == [5e-6, 1e-4]
    assert config.transition.address is not None
    assert config.transition.address.address == "localhost:50062"


def test_one_address_needs_no_list(tmp_path: Path) -> None:
    for given in ("gpu:50051", '{address = "gpu:50051"}'):
        config = _load(tmp_path, RUN, f"agents.1.addresses={given}")
        assert [endpoint.address for endpoint in config.agents[1].addresses] == ["gpu:50051"]


def test_an_agent_may_have_training_settings_of_its_own(tmp_path: Path) -> None:
    """What `[[agents]]` does not state is `[magrpo]`'s; "none" is a statement."""
    common = RUN.replace("[magrpo]", "[magrpo]\nmax_grad_norm = 1.0\nwarmup_steps = [1, 2]")
    own = 'learning_rate = 1e-4\nmax_grad_norm = "none"\ntrainable = false\nweight_decay = 0.5'
    config = _load(tmp_path, common.replace("learning_rate = 1e-4", own)).training
    assert config.num_agents == 2
    assert config.max_grad_norm == (1.0, None)
    assert config.trainable == (True, False)
    assert config.weight_decay == (None, 0.5)
    assert config.warmup_steps == (1, 2)
    assert config.lr_scheduler_type == "constant"
    plain = _load(tmp_path)
    assert plain.training == plain.magrpo.replace(num_agents=2)


def test_a_list_has_one_value_per_agent(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"magrpo\.trainable: got 3 of them, wanted one, or 2"):
        _load(tmp_path, RUN, "magrpo.trainable=[true, true, true]")


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path,
) -> None:
    environ = {"ANTIPHON_MAGRPO__NUM_TURNS": "3", "ANTIPHON_MAGRPO__SEED": "7"}
    config = _load(tmp_path, RUN, "magrpo.num_turns=4", "agents.1.model=other", **environ)
    assert config.magrpo.num_turns == 4
    assert config.magrpo.seed == 7
    assert config.agents[1].model == "other"


@pytest.mark.parametrize(
    ("override", "key", "nearest"),
    [
        ("magrpo.num_turn=2", "magrpo.num_turn", "num_turns"),
        ("agents.0.adresses=x", "adresses", "addresses"),
        ("datset.path=x", "datset", "dataset"),
        ("server.prot=1", "server.prot", "port"),
        ("num_generations=8", "num_generations", "magrpo.num_generations"),
        ("addresses=x", "addresses", "agents.0.addresses"),
        ("agents.0.address=x", "agents.0.address", "'addresses', the nearest known key"),
        ("name=x", "name", "'run.name'"),
        ("magrpo.learning_rate=1", "magrpo.learning_rate", "'agent_learning_rate'"),
        ("reward.token_file=x", "reward.token_file", "wanted 'reward.address.token_file'"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(
    tmp_path: Path, override: str, key: str, nearest: str
) -> None:
    with pytest.raises(FieldError, match=rf"{key}.*{nearest}"):
        _load(tmp_path, RUN, override)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("ANTIPHON_MAGRPO_NUM_TURNS", "ANTIPHON_MAGRPO__NUM_TURNS"),
        ("ANTIPHON_REWARD_ADDRESS", "ANTIPHON_REWARD__ADDRESS"),
        ("ANTIPHON_NUM_TURNS", "ANTIPHON_MAGRPO__NUM_TURNS"),
        ("ANTIPHON_MAGPRO__SEED", "ANTIPHON_MAGRPO__SEED"),
    ],
)
def test_an_unknown_variable_is_told_the_one_that_is_meant(
    tmp_path: Path, variable: str, meant: str
) -> None:
    with pytest.raises(FieldError, match=f"{variable}: got an unknown variable, wanted .*{meant}"):
        _load(tmp_path, RUN, **{variable: "1"})


def test_three_agents_and_the_default_of_two_make_three(tmp_path: Path) -> None:
    """L18: N is what was given."""
    config = _load(tmp_path, RUN + '[[agents]]\nmodel = "c"\n')
    assert config.num_agents == 3
    assert config.resolved()["magrpo"]["num_agents"] == 3


def test_a_number_of_agents_that_contradicts_the_list_is_refused(tmp_path: Path) -> None:
    """L18: a contradiction is an error at start."""
    with pytest.raises(FieldError, match=r"magrpo\.num_agents: got 3, wanted 2"):
        _load(tmp_path, RUN, "magrpo.num_agents=3")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("magrpo.joint_mode=crossed", r"magrpo\.joint_mode.*'crossed'.*'aligned' or 'cross'"),
        ("magrpo.max_staleness=-1", r"magrpo\.max_staleness.*-1.*greater than or equal to 0"),
        ("reward.address=localhost:1", "reward: got a function and an address"),
        ("reward.function=no-colon", r"reward\.function.*module:function"),
        ("dataset.path=x.jsonl", "dataset: got path and prompts, wanted exactly one"),
        ("formatters.functions=['a:b','c:d','e:f']", "formatters.functions: got 3"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(FieldError, match=message):
        _load(tmp_path, RUN, override)


def test_a_second_turn_needs_a_transition(tmp_path: Path) -> None:
    without = RUN.replace('[transition]\naddress = "localhost:50062"\n', "")
    with pytest.raises(FieldError, match=r"transition.*num_turns = 1"):
        _load(tmp_path, without)
    assert _load(tmp_path, without, "magrpo.num_turns=1").transition.address is None


def test_agents_reward_and_dataset_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"agents: got none, wanted one \[\[agents\]\] per agent"):
        _load(tmp_path, "[magrpo]\nnum_turns = 1\n")
    with pytest.raises(FieldError, match="reward: got neither function nor address"):
        _load(tmp_path, '[[agents]]\nmodel = "m"\n')


def test_credentials_go_to_addresses_that_state_none(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    config = _load(
        tmp_path,
        RUN,
        f"credentials.token_file={token}",
        "credentials.insecure=true",
        f"agents.0.addresses=['localhost:1', {{address='localhost:2', token_file='{token}x'}}]",
    )
    first, second = (config.endpoint(e) for e in config.agents[0].addresses)
    assert first.token_file == token
    assert second.token_file == Path(f"{token}x")


def test_the_resolved_run_is_json_and_reads_back(tmp_path: Path) -> None:
    config = _load(tmp_path)
    values = json.loads(json.dumps(config.resolved()))
    again = RunConfig.model_validate(values)
    assert again.agents == config.agents
    assert again.magrpo.num_train_epochs == 1
    assert again.server == config.server


ONE = """
[magrpo]
num_agents = 3
num_turns = 1
{magrpo}
{agents}
[reward]
function = "tasks:reward"
[dataset]
prompts = ["a", "b"]
{more}
"""
AGENT = '[[agents]]\nmodel = "{}"\naddresses = ["{}:1"]\n'


def test_one_shared_model_plays_as_many_agents_as_are_said(tmp_path: Path) -> None:
    agent = AGENT.format("m", "a")
    text = ONE.format(magrpo="shared_policy = true", agents=agent, more="")
    config = _load(tmp_path, text)
    assert (config.num_agents, len(config.players)) == (3, 3)
    assert [config.learning_rate(agent) for agent in range(3)] == [5e-6] * 3
    assert config.resolved()["magrpo"]["num_agents"] == 3
    listed = "".join(AGENT.format("m", host) for host in "abc")
    config = _load(tmp_path, ONE.format(magrpo="shared_policy = true", agents=listed, more=""))
    assert [player.addresses[0].address for player in config.players] == ["a:1", "b:1", "c:1"]
    other = agent + AGENT.format("other", "b") + AGENT.format("m", "c")
    with pytest.raises(FieldError, match=r"agents\[1\].model: got 'other', wanted 'm'"):
        _load(tmp_path, ONE.format(magrpo="shared_policy = true", agents=other, more=""))
    with pytest.raises(FieldError, match=r"magrpo\.num_agents: got 3"):
        _load(tmp_path, ONE.format(magrpo="", agents=agent, more=""))


def test_a_centralised_model_answers_for_as_many_agents_as_are_said(tmp_path: Path) -> None:
    agent, more = AGENT.format("m", "a"), '[centralized]\nadapter = "tasks:Adapter"'
    config = _load(tmp_path, ONE.format(magrpo="", agents=agent, more=more))
    assert config.centralized is not None
    assert config.centralized.adapter == "tasks:Adapter"
    assert (config.num_agents, len(config.players)) == (3, 1)
    for magrpo, agents, got in (
        ("shared_policy = true", agent, "shared_policy"),
        ("", agent * 2, "2 .*agents"),
    ):
        text = ONE.format(magrpo=magrpo, agents=agents, more=more)
        text = text.replace("num_agents = 3", "") if "2" in got else text
        with pytest.raises(FieldError, match=f"centralized: got .*{got}"):
            _load(tmp_path, text)


def test_services_that_a_run_starts_may_have_another_engine(tmp_path: Path) -> None:
    command = "tgi --model-id {model} --port {port}"
    text = f'{RUN}\n[generation]\nengine = "tgi"\noptions = ["--engine-command", "{command}"]\n'
    given = _load(tmp_path, text).generation.arguments
    assert given == ("--engine", "tgi", "--engine-command", command)
    assert _load(tmp_path).generation.arguments == ()


def test_a_home_directory_that_nobody_has_is_refused_by_name(tmp_path: Path) -> None:
    """S17: found by damaging run files."""
    file = tmp_path / "run.toml"
    file.write_text('[[agents]]\nmodel = "~no-such-user/model"\n')
    with pytest.raises(FieldError, match=r"agents\.0\.model: got '~no-such-user/model'"):
        load_run_config(file)
