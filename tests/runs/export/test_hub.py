"""Models and datasets on the hub, pushed by the command itself to a hub on loopback."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, RepoCard, constants

from mcp_rl.cli import main
from mcp_rl.run_directory import RunDirectory
from mcp_rl.scenario import McpScenario, StdioServer, read_scenarios
from mcp_rl.trajectory import Trajectory, TrajectoryGroup
from tests.runs.export.hub_server import TOKENS, Hub, Repository, hub_server
from tests.runs.export.trained import write_run

WRITES, READS = TOKENS
SECRET = "swordfish-9173-xyzzy"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the run `calc`, whose server and episodes name this machine's paths and a secret."""
    folder = tmp_path_factory.mktemp("project")
    run = RunDirectory(write_run(folder / ".mcp_rl" / "default" / "models" / "calc", "lora"))
    server = StdioServer(command="{python}", args=(str(Path(__file__).resolve()),))
    of_machine = McpScenario(task_description="Read.", server_params=server, id="here", split="train")
    run.save_scenarios("train", [of_machine])
    call = {"id": "1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Read."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": f"{folder}/a says {SECRET}", "tool_call_id": "1", "name": "read"},
        {"role": "assistant", "content": [{"type": "text", "text": "It says so."}]},
    ]
    tried = [Trajectory(scenario_id="here", messages=messages, success=done, reward=float(done)) for done in (1, 0)]
    run.save_trajectories("train", 1, [TrajectoryGroup(scenario=of_machine, trajectories=tried)])
    (run.path / "seal.json").unlink()
    return folder


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hub_server() as served:
        yield served


def run(hub: Hub, place: Path, *words: str) -> tuple[int, str]:
    """Return the exit code and everything that was printed."""
    given = {"HF_ENDPOINT": hub.url, "HF_TOKEN": WRITES, "HF_HOME": str(place / "hf"), "HF_HUB_OFFLINE": "0"}
    environment = {**os.environ, **given, "HF_HUB_DISABLE_XET": "1", "VAULT_PASSWORD": SECRET}
    command = [sys.executable, "-m", "mcp_rl", "export", *words]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_a_model_is_pushed_with_its_evaluation(hub: Hub, place: Path) -> None:
    code, said = run(hub, place, "calc", "--push-to-hub", "me/calc", "--out", "pushed")
    assert code == 0 and f"On the hub: {hub.url}/me/calc" in said, said
    repository = hub.repositories["model/me/calc"]
    ours = {path.relative_to(place / "pushed").as_posix(): path for path in (place / "pushed").rglob("*.*")}
    assert repository.private and len(repository.commits) == 2
    assert {name: content for name, content in repository.files.items() if name != ".gitattributes"} == {
        name: path.read_bytes() for name, path in ours.items()
    }
    card = ModelCard(repository.files["README.md"].decode())
    [result] = card.data.eval_results or []
    assert (card.data.model_name, result.metric_name, result.metric_value) == ("calc@2", "success, greedy", 0.875)
    assert result.dataset_type == "mcp_calculator" and result.metric_args["before_training"] == 0.25
    assert WRITES not in said and not any(WRITES.encode() in content for content in repository.files.values())


def fits(value: Any, feature: dict[str, Any]) -> bool:
    """Return whether a value has the type of a feature in a dataset's card; a missing value has every type."""
    if value is None or feature.get("dtype") == "json":
        return True
    if (struct := feature.get("struct")) or isinstance(feature.get("list"), list):
        members = struct or feature["list"]
        known = {member["name"]: member for member in members}
        rows = [value] if struct else value
        return all(row.keys() <= known.keys() and all(fits(row[name], known[name]) for name in row) for row in rows)
    if "list" in feature:
        return isinstance(value, list) and all(fits(item, {"dtype": feature["list"]}) for item in value)
    types: dict[str, type] = {"string": str, "int64": int, "float64": float, "bool": bool}
    return isinstance(value, types[feature["dtype"]])


def test_a_dataset_has_the_columns_that_its_card_declares_and_no_secret(hub: Hub, place: Path) -> None:
    words = ("calc", "--format", "dataset", "--push-to-hub", "our-lab/calc-data", "--public")
    code, said = run(hub, place, *words)
    assert code == 0 and f"On the hub: {hub.url}/datasets/our-lab/calc-data" in said, said
    repository = hub.repositories["dataset/our-lab/calc-data"]
    assert not repository.private
    everything = b"\n".join(repository.files.values()).decode()
    assert SECRET not in everything and str(place) not in everything and "${PWD}/a says ${VAULT_PASSWORD}" in everything
    about = RepoCard(repository.files["README.md"].decode()).data.to_dict()
    columns = {part["config_name"]: {"struct": part["features"]} for part in about["dataset_info"]}
    assert {column["name"] for column in columns["scenarios"]["struct"]} == McpScenario.model_fields.keys()
    listed = [(part["config_name"], file["path"]) for part in about["configs"] for file in part["data_files"]]
    assert [path for _, path in listed] == ["scenarios/train.jsonl", "scenarios/val.jsonl", "episodes/train.jsonl"]
    for part, path in listed:
        rows = [json.loads(line) for line in repository.files[path].splitlines()]
        assert rows and all(fits(row, columns[part]) for row in rows), path
    assert (
        "a path of this machine" in said and "server_params" not in repository.files["scenarios/train.jsonl"].decode()
    )
    folder = place / ".mcp_rl" / "default" / "exports" / "calc-dataset"
    assert len(read_scenarios(folder / "scenarios" / "val.jsonl")) == 40

    code, said = run(hub, place, str(folder / "scenarios" / "val.jsonl"), *words[1:], "--overwrite")  # scenarios alone
    assert code == 0, said
    assert repository.files.keys() == {".gitattributes", "README.md", "manifest.json", "scenarios/train.jsonl"}


@pytest.mark.parametrize(
    ("words", "token", "code", "sentence"),
    [
        (["me/a"], None, 2, "run `hf auth login`, or set HF_TOKEN"),
        (["me/a"], "hf_Wrong0123456789abcde", 2, "the hub does not accept the token"),
        (["me/a"], READS, 2, "The token may only read"),
        (["a"], WRITES, 2, "needs an owner and a name, such as me/a"),
        (["me/a b"], WRITES, 2, "The hub allows no name such as 'me/a b'"),
        (["you/a"], WRITES, 2, "it belongs to me or our-lab"),
        (["me/thesis", "--overwrite"], WRITES, 2, "datasets/me/thesis already holds something else"),
        (["me/seen"], WRITES, 2, "is public: add --public"),
        (["me/a", "nowhere"], WRITES, 1, "http://127.0.0.1:9 cannot be reached"),
    ],
)
def test_what_cannot_be_pushed_is_one_sentence_and_changes_nothing(
    words: list[str], token: str | None, code: int, sentence: str, hub: Hub, place: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    hub.repositories["dataset/me/thesis"] = taken = Repository(private=True, files={"thesis.txt": b"years"})
    hub.repositories["dataset/me/seen"] = Repository(private=False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9" if "nowhere" in words else hub.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(place / "no-token"))
    monkeypatch.setenv("HF_TOKEN", token or "")
    monkeypatch.chdir(place)
    asked = ["--push-to-hub", *(word for word in words if word != "nowhere")]
    assert main(["export", "calc", "--format", "dataset", "--out", "refused", *asked]) == code
    out, err = capsys.readouterr()
    assert sentence in err and out == "" and len(err.strip().splitlines()) == 1
    assert len(hub.repositories) == 2 and taken.files == {"thesis.txt": b"years"}
    assert not (place / "refused").exists()


def test_a_failed_push_names_what_is_there_and_goes_on_later(hub: Hub, place: Path) -> None:
    words = ("calc", "--format", "dataset", "--out", "kept", "--push-to-hub", "me/later")
    hub.fails_at = "/commit/"
    code, said = run(hub, place, *words)
    assert code == 1 and f"{hub.url}/datasets/me/later is new and still empty" in said, said
    assert "(The disk of the hub is full)" in said and (place / "kept" / "manifest.json").is_file()
    hub.fails_at = None
    code, said = run(hub, place, *words, "--overwrite")
    assert code == 0 and "README.md" in hub.repositories["dataset/me/later"].files, said
