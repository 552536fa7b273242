from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_rl.config import TINY, RunConfig, TrainConfig, config_keys, run_name, settings
from mcp_rl.config.load import load_config, parse_override
from mcp_rl.errors import ConfigError

CALCULATOR = {"server": "mcp_calculator"}


def complaint(*overrides: str, file: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(file=file, overrides=overrides, options=CALCULATOR)
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith((".", "?"))
    return sentence


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('server = "other"\nsteps = 3\n[train]\nlearning_rate = 1e-3\nkl = 0.1\n')
    config = load_config(
        file=file, overrides=["train.learning_rate=1e-4", "steps=4"], options={"steps": 5, "seed": None}
    )
    assert (config.server, config.steps, config.train.learning_rate, config.train.kl) == (("other",), 5, 1e-4, 0.1)
    assert config.seed == 0


def test_a_larger_model_has_its_own_defaults() -> None:
    tiny, large = (RunConfig(server="s", base_model=name) for name in (TINY, "Qwen/Qwen2.5-3B-Instruct"))
    assert large.rollout.max_turn_tokens > tiny.rollout.max_turn_tokens
    assert large.train.learning_rate < tiny.train.learning_rate
    given = RunConfig(server="s", base_model="Qwen/Qwen2.5-3B-Instruct", train=TrainConfig(kl=0.5), steps=7)
    assert (given.train.kl, given.train.learning_rate, given.steps) == (0.5, large.train.learning_rate, 7)


def test_a_configuration_survives_being_written_and_read() -> None:
    config = load_config(overrides=["train.lora.rank=4", "scenarios.file=tasks.jsonl"], options=CALCULATOR)
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_printed_settings_are_overrides_of_the_same_run() -> None:
    config = load_config(overrides=["train.kl=0.1", 'judge.model="m"', "judge.rubric=be brief"], options=CALCULATOR)
    printed = [f"{key}={value}" for key, value in settings(config) if value is not None]
    assert load_config(overrides=printed) == config
    assert {key for key, _ in settings(config)} == {key for key, _ in config_keys()}


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans()))
def test_override_values_are_toml(value: int | float | bool) -> None:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    assert parse_override(f"train.kl={text}") == ("train.kl", value)


def test_an_override_that_is_not_toml_is_text() -> None:
    assert parse_override("judge.rubric=short and kind") == ("judge.rubric", "short and kind")
    assert parse_override("a.b=x=y") == ("a.b", "x=y")


@pytest.mark.parametrize(
    ("override", "near"),
    [
        ("train.learning_rat=1", "train.learning_rate"),
        ("learning_rate=1", "train.learning_rate"),
        ("trian.learning_rate=1", "train"),
        ("train.lora.rnak=1", "train.lora.rank"),
        ("rollout.groupsize=4", "rollout.group_size"),
    ],
)
def test_an_unknown_key_names_the_nearest_right_one(override: str, near: str) -> None:
    assert f"did you mean {near!r}?" in complaint(override)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.lora.rank=many", "train.lora.rank = 'many'"),
        ("rollout.group_size=1", "rollout.group_size = 1"),
        ("steps=-1", "steps = -1"),
        ("train=3", "train.learning_rate"),
        ("seed.x=1", "seed"),
        ("project=../up", "project = '../up'"),
        ("project=..", "project = '..'"),
        ("name=a/b", "name = 'a/b'"),
        ("rollout.temperature=nan", "rollout.temperature"),
        ("train.learning_rate=inf", "train.learning_rate"),
        ("nonsense", "train.learning_rate=1e-4"),
        ("judge.base_url='http://localhost:1'", "judge.model"),
        ("reward.weights={ruler=1.0}", "judge.model"),
        ("scenarios.val=720", "scenarios.count = 720"),
        ("train.minibatches=1000", "train.minibatches = 1000"),
        ("train.minibatches=65", "more than the rollouts of a step: 64 where episodes are long"),
        ("rollout.max_turn_tokens=1000", "rollout.max_tokens = 384"),
        ("engine.url=", "engine.url = ''"),
        ("engine.url=http://127.0.0.1:1/v1?key=abc", "holds a query"),
        ("unsloth.use_gradient_checkpointing=unslot", "checkpointing = 'unslot' does not work: input should be 'unsl"),
        ("engine.args.x=[1]", "engine.args.x = [1] does not work"),
        ("engine.args.max-model-len=9", "engine.max_context"),
        ("placement.learner_gpus=[-1]", "= -1 does not work"),
    ],
)
def test_a_value_that_cannot_work_is_one_sentence_that_names_it(override: str, words: str) -> None:
    assert words in complaint(override)


def test_what_the_engine_is_given_may_be_written_as_it_is_typed() -> None:
    config = load_config(
        overrides=[
            "engine.args.max-num-batched-tokens=8192",
            "engine.args.compilation-config.level=0",
            "engine.environment.VLLM_CPU_KVCACHE_SPACE=4",
            "placement.learner_gpus=0,1",
            "placement.engine_gpus=2",
        ],
        options=CALCULATOR,
    )
    assert config.engine.args == {"max-num-batched-tokens": 8192, "compilation-config.level": 0}
    assert config.engine.environment == {"VLLM_CPU_KVCACHE_SPACE": "4"}
    assert (config.placement.learner_gpus, config.placement.engine_gpus) == ((0, 1), (2,))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.sft_steps=many", "train.sft_steps = 'many' does not work: input should be a valid integer"),
        ("train.sft_steps=-1", "train.sft_steps = -1 does not work: input should be greater than or equal to 0"),
        ("scenarios.levels=toldd", "there is no level 'toldd' of tasks; did you mean 'told'?"),
    ],
)
def test_a_wrong_value_is_one_sentence(override: str, says: str) -> None:
    said = complaint(override)
    assert says in said and not said.endswith("?.")


def test_contradicting_engine_settings_are_refused() -> None:
    assert "cannot sample ahead" in complaint("engine.sharing=sleep", "train.max_staleness=1")
    assert "is not vLLM" in complaint("engine.sharing=sleep", "engine.kind=local")
    assert "needs no start" in complaint("engine.sharing=split", "engine.url=http://127.0.0.1:1/v1")


def test_contradicting_sources_of_scenarios_are_refused() -> None:
    assert "scenarios.count" in complaint("scenarios.file=tasks.jsonl", "scenarios.count=50")
    assert "leave nothing to solve" in complaint("scenarios.unsolvable=0.6", "scenarios.without_tools=0.5")


def test_contradicting_train_settings_are_refused() -> None:
    assert "train.decay_steps" in complaint("train.schedule=cosine", "train.decay_steps=0")
    assert "for the decay" in complaint("train.schedule=linear", "train.decay_steps=5", "train.warmup_steps=5")
    assert "uncorrected" in complaint("train.max_staleness=2", "train.importance_cap=0")


@pytest.mark.parametrize("setting", ["server", "judge.base_url"])
def test_a_password_in_an_address_is_refused_and_not_repeated(setting: str) -> None:
    options = {**CALCULATOR, "judge.model": "m", setting: "https://me:hunter22@example.org/mcp"}
    with pytest.raises(ConfigError) as caught:
        load_config(options=options)
    assert setting in str(caught.value) and "hunter22" not in str(caught.value)


def test_a_run_needs_a_server() -> None:
    with pytest.raises(ConfigError, match="--server mcp_calculator"):
        load_config()


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "none.toml") in complaint(file=tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("steps = \n")
    assert "broken.toml" in complaint(file=broken) and "line 1" in complaint(file=broken)
    broken.write_bytes(b"\xff\xfe")
    assert "broken.toml" in complaint(file=broken)


def test_different_runs_have_different_folders() -> None:
    runs = [
        RunConfig(server="a"),
        RunConfig(server="a", seed=1),
        RunConfig(server="a", base_model="Qwen/Qwen2.5-3B-Instruct"),
        RunConfig(server="npx -y @scope/server-everything stdio"),
        RunConfig(server="https://example.org/mcp"),
        RunConfig(server="a", project="other"),
    ]
    folders = [run.run_dir for run in runs]
    assert len(set(folders)) == len(folders)
    assert all(run.run_dir.parent.parent == run.output_dir / run.project for run in runs)


def test_long_server_commands_have_different_folders() -> None:
    command = "npx -y @modelcontextprotocol/server-filesystem /home/someone/a/rather/long/folder/name/of/things/"
    assert RunConfig(server=command + "one").name != RunConfig(server=command + "two").name


def test_base_models_of_different_owners_have_different_folders() -> None:
    assert RunConfig(server="a", base_model="one/m").name != RunConfig(server="a", base_model="two/m").name


def test_every_field_says_why_it_has_its_default() -> None:
    assert all(field.description and field.description.endswith(".") for _, field in config_keys())


def test_a_judge_turns_off_the_division_that_blows_up_near_ties() -> None:
    assert RunConfig(server="x").train.scales_by_std
    assert not RunConfig(server="x", judge={"model": "openai/any"}).train.scales_by_std
    assert RunConfig(server="x", judge={"model": "openai/any"}, train={"scale_by_std": True}).train.scales_by_std


def test_dr_grpo_leaves_the_division_out_unless_it_is_asked_for() -> None:
    assert not TrainConfig(loss="dr_grpo").scales_by_std
    assert TrainConfig(loss="dr_grpo", scale_by_std=True).scales_by_std


def test_older_tokens_are_corrected_unless_a_cap_says_otherwise() -> None:
    assert TrainConfig().cap == 0
    assert TrainConfig(max_staleness=1).cap == 2
    assert TrainConfig(importance_cap=4).cap == 4


def test_a_run_has_one_server_or_several() -> None:
    both = RunConfig(server=("mcp_calculator", "mcp_notes"))
    assert both.name == "mcp_calculator-mcp_notes-tiny"
    assert RunConfig(server="mcp_calculator") == RunConfig(server=("mcp_calculator",))


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("npx -y @scope/server-everything stdio", "npx-scope-server-everything"),
        ("uvx --from mcp-math-server mcp-math", "uvx-mcp-math-server"),
        ("uvx --from=mcp-math-server mcp-math", "uvx-mcp-math-server"),
        ("python3.12 -m mcp_server_time --tz UTC", "python3.12-mcp-server-time"),
        ("/opt/my/bin/uvx mcp-server-git", "uvx-mcp-server-git"),
        ("my-server --stdio", "my-server"),
    ],
)
def test_a_run_of_a_command_is_named_after_its_server(command: str, name: str) -> None:
    assert RunConfig(server=command).name.rpartition("-tiny")[0][:-7] == name


def test_a_run_name_holds_no_secret_of_a_server_command() -> None:
    for server in (
        "npx thing --api-key sk-123",
        "https://user:sk-123@host/mcp?key=sk-123",
        "npx thing --key=sk-123",
        "npx -y server-postgres postgresql://me:sk-123@host/db",
        "server-postgres postgresql://me:sk-123@host/db",
        "npx -y thing -p sk-123",
        "uvx --from git+https://sk-123@github.com/a/b thing",
    ):
        name = RunConfig.model_construct(server=(server,), base_model=TINY, seed=0)
        assert "sk" not in run_name(name) and "123" not in run_name(name).rpartition("-tiny")[0][:-7]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("tools.deadlines={add = 0}", "add 0 seconds"),
        ('tools.offer=["everything"]', "tools.offer"),
        ("tools.max_servers=0", "tools.max_servers"),
    ],
)
def test_settings_about_tools_that_make_no_sense_are_refused(override: str, words: str) -> None:
    assert words in complaint(override)


def test_a_recording_is_made_or_played_back() -> None:
    assert "tools.replay" in complaint("tools.record=a.jsonl", "tools.replay=b.jsonl")
    assert "resets nothing" in complaint("tools.isolation=shared", "tools.reset_tool=reset")
