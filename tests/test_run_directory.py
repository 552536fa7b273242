"""A run directory is owned by one process, holds only complete files, and refuses another identity."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_rl.config import TINY
from mcp_rl.config.identity import RunIdentity
from mcp_rl.config.listing import flat_values
from mcp_rl.config.load import load_config
from mcp_rl.errors import RunDirectoryError
from mcp_rl.run_directory import RunDirectory, RunState, StepProgress, open_run
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.system.durable import write_atomically

IDENTITY = RunIdentity(
    server="mcp_calculator",
    base_model="mcp-rl/tiny",
    seed=0,
    schema_hash="ab12",
    scenarios_hash="cd34",
    settings={"train.learning_rate": 1e-4, "rollout.group_size": 16},
)
SETTINGS = flat_values(load_config(overrides=["server=['mcp_calculator']"]))


def test_a_second_process_is_refused_and_names_the_first(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pathlib\nfrom mcp_rl.run_directory import open_run\n"
            "with open_run(pathlib.Path(sys.argv[1])):\n print('held', flush=True)\n sys.stdin.read()",
            str(tmp_path / "run"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(RunDirectoryError, match=f"pid {holder.pid}"), open_run(tmp_path / "run"):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with open_run(tmp_path / "run"):
        pass  # the kernel has released the lock of the killed process


def test_the_lock_passes_errors_of_the_run_through(tmp_path: Path) -> None:
    with pytest.raises(ConnectionResetError), open_run(tmp_path / "run"):
        raise ConnectionResetError


def test_a_run_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        for folder in (run.path, run.checkpoints, run.logs):
            assert folder.stat().st_mode & 0o777 == 0o700


def test_a_saved_state_comes_back(tmp_path: Path) -> None:
    with open_run(tmp_path / "a" / "b") as run:
        assert run.identity() is None
        assert run.state() == RunState()
        run.begin(IDENTITY, {"name": "b"})
        run.save_state(RunState(step=3, progress=StepProgress(rollouts=7)))
    with open_run(tmp_path / "a" / "b") as run:
        assert run.identity() == IDENTITY
        assert run.state() == RunState(step=3, progress=StepProgress(rollouts=7))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"server": "mcp_files"}, "server (was 'mcp_calculator', is 'mcp_files')"),
        ({"schema_hash": "ffff"}, "schema_hash (was 'ab12', is 'ffff')"),
        ({"settings": {"rollout.group_size": 16}}, "train.learning_rate (was 0.0001, is 0.0008)"),
    ],
)
def test_another_identity_is_refused_with_the_differences(tmp_path: Path, change: dict[str, object], said: str) -> None:
    with open_run(tmp_path / "run") as run:
        run.begin(IDENTITY, {})
        run.check(IDENTITY)
        with pytest.raises(RunDirectoryError) as caught:
            run.check(IDENTITY.model_copy(update=change))
    assert said in str(caught.value)
    assert "--fresh" in str(caught.value) and "--name" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_setting_unknown_to_an_old_run_had_its_default(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        run.begin(IDENTITY, {})
        later = {**IDENTITY.settings, "unsloth.dtype": "auto"}
        run.check(IDENTITY.model_copy(update={"settings": {**later, "unsloth.load_in_8bit": False}}))
        with pytest.raises(RunDirectoryError, match=r"unsloth.load_in_8bit \(was False, is True\)"):
            run.check(IDENTITY.model_copy(update={"settings": {**IDENTITY.settings, "unsloth.load_in_8bit": True}}))


def test_a_run_from_before_a_limit_on_tokens_goes_on_without_one(tmp_path: Path) -> None:
    older = {key: value for key, value in SETTINGS.items() if key != "rollout.step_tokens"}
    now = IDENTITY.model_copy(update={"settings": SETTINGS})
    with open_run(tmp_path / "run") as run:
        run.begin(IDENTITY.model_copy(update={"settings": older}), {})
        with pytest.raises(RunDirectoryError) as refused:
            run.check(now)
        word = "rollout.step_tokens=none"
        assert f"(was None, is 16384). To go on with it, add {word}, start over" in str(refused.value)
        unlimited = load_config(overrides=["server=['mcp_calculator']", word])
        run.check(now.model_copy(update={"settings": flat_values(unlimited)}))


def test_fresh_removes_the_run_and_half_removed_ones(tmp_path: Path) -> None:
    (tmp_path / ".run.removed").mkdir()
    with open_run(tmp_path / "run") as run:
        run.begin(IDENTITY, {})
    with open_run(tmp_path / "run", fresh=True) as run:
        assert run.identity() is None
    assert sorted(p.name for p in tmp_path.iterdir()) == [".run.lock", "run"]


def test_history_of_incomplete_steps_is_dropped(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        run.append_history({"step": 1})
        run.append_history({"step": 2, "word": "für"})
        run.append_history({"step": 3})
        with (run.path / "history.jsonl").open("a") as file:
            file.write('{"step": 3, "cut o')
        assert len(run.history()) == 3
        run.discard_after(2)
        assert run.history() == [{"step": 1}, {"step": 2, "word": "für"}]
        run.append_history({"step": 3})
        assert [line["step"] for line in run.history()] == [1, 2, 3]


def test_a_repeated_evaluation_replaces_its_line(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        for line in (
            {"step": 0, "split": "val"},
            {"step": 4, "split": "train"},
            {"step": 4, "split": "val", "reward": 1},
        ):
            run.append_history(line)
        run.append_history({"step": 4, "split": "val", "reward": 2})
        assert [(line["step"], line["split"]) for line in run.history()] == [(0, "val"), (4, "train"), (4, "val")]
        assert run.history()[-1]["reward"] == 2


def test_a_damaged_line_of_the_history_is_named(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        run.append_history({"step": 1})
        with (run.path / "history.jsonl").open("a") as file:
            file.write('{"step": 2, "rew\n[]\n')
        run.append_history({"step": 3})
        with pytest.raises(RunDirectoryError, match=r"history\.jsonl, line 2 has no digest: put back a good copy"):
            run.discard_after(2)
        (run.path / "seal.json").unlink()
        with pytest.raises(RunDirectoryError, match=r"history\.jsonl, line 2 is not JSON: mend or remove that line"):
            run.discard_after(2)


def test_a_run_without_its_checkpoints_is_refused(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        run.begin(IDENTITY, {})
        run.save_state(RunState(step=3))
        with pytest.raises(RunDirectoryError, match="is at step 3, but its checkpoints are gone"):
            run.check(IDENTITY)
        (run.checkpoints / "0003").mkdir()
        run.check(IDENTITY)


@pytest.mark.skipif(os.getuid() != 0, reason="another user is needed, for whom the folder is read-only")
def test_a_read_only_folder_is_one_sentence(tmp_path: Path) -> None:
    program = (
        "import os, sys, pathlib\n"
        "from mcp_rl.learning.disk.checkpoint import write_checkpoint\n"
        "from mcp_rl.run_directory import open_run\n"
        "os.chdir(sys.argv[1]); os.seteuid(65534)\n"
        "for attempt in (lambda: open_run(pathlib.Path('new')).__enter__(),\n"
        "                lambda: write_checkpoint(pathlib.Path('checkpoints'), 1, {'a': b''})):\n"
        "    try:\n        attempt()\n    except Exception as error:\n        print(type(error).__name__, error)\n"
    )
    tmp_path.chmod(0o555)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
    )
    said = done.stdout.splitlines()
    assert said[0].startswith("RunDirectoryError Cannot write .new.lock: there is no permission to write there")
    assert said[1].startswith("CheckpointError Cannot write the checkpoint checkpoints/0001: Permission denied")


def test_trajectories_of_incomplete_steps_are_discarded(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        for step in (1, 2):
            run.save_trajectories("train", step, [])
        run.save_trajectories("val", 0, [])
        (run.path / "report.json.tmp").write_text("half")
        run.discard_after(1)
        left = sorted(str(p.relative_to(run.path)) for p in run.path.rglob("*") if p.is_file())
    assert left == ["trajectories/train/0001.jsonl", "trajectories/val/0000.jsonl"]


def test_scenarios_are_kept_with_the_run(tmp_path: Path) -> None:
    scenario = McpScenario(task_description="add 1 and 2", server_params=StdioServer(command="server"))
    with open_run(tmp_path / "run") as run:
        assert run.scenarios("train") is None
        run.save_scenarios("train", [scenario])
        assert run.scenarios("train") == [scenario]


def test_a_damaged_state_is_one_sentence(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        (run.path / "state.json").write_text("{")
        with pytest.raises(RunDirectoryError, match=r"state\.json is not JSON.*--fresh"):
            run.state()
        (run.path / "state.json").write_text(json.dumps({"step": "many"}))
        with pytest.raises(RunDirectoryError, match=r"state\.json was not written by this version"):
            run.state()


def test_an_unwritable_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=r"Cannot write .*file"), open_run(tmp_path / "file" / "run"):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.save_state(RunState(step=1))
    (tmp_path / "state.json.tmp").symlink_to("/dev/full")
    with pytest.raises(RunDirectoryError, match="the disk is full"):
        run.save_state(RunState(step=2))
    assert run.state().step == 1


def test_an_atomic_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "deep" / "file", b"whole")
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["file"]
    assert (tmp_path / "deep" / "file").read_bytes() == b"whole"


def test_fresh_refuses_to_remove_needed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "models" / "a"
    (run / "checkpoints" / "0001").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for place in (run, run / "checkpoints" / "0001", Path("models/a/train.jsonl")):
        with (
            pytest.raises(RunDirectoryError, match=r"--fresh would remove .*: choose another name than a"),
            open_run(run, fresh=True, needed=[None, place]),
        ):
            pass
        assert (run / "checkpoints" / "0001").is_dir()
    with open_run(run, fresh=True, needed=[tmp_path / "models" / "ab"]):
        assert not (run / "checkpoints" / "0001").exists()


def test_the_words_that_continue_a_run_are_named(tmp_path: Path) -> None:
    settings = {"unsloth.load_in_4bit": True, "unsloth.revision": None, "train.loss": "dr_grpo", "train.lora.rank": 8}
    was = RunIdentity(server="s", base_model=TINY, seed=0, schema_hash="a", scenarios_hash="b", settings=settings)
    assert was.difference(was) is None
    table = {"reward.weights.verifier": 0.5, "reward.weights.own": 0.5}
    mixed = was.model_copy(update={"settings": {**settings, **table}})
    said = mixed.difference(was)
    assert said and """add 'reward.weights={"verifier" = 0.5, "own" = 0.5}', start over""" in said
    typed = {"unsloth.revision": "main", "train.loss": "grpo", "train.lora.rank": 16}
    said = was.difference(was.model_copy(update={"settings": typed, "seed": 3}))
    assert said is not None and said.endswith(
        "To go on with it, add --seed 0 unsloth.load_in_4bit=true train.loss=dr_grpo train.lora.rank=8 and leave out "
        "unsloth.revision, start over with --fresh, or choose another name with --name."
    )
    said = was.difference(was.model_copy(update={"schema_hash": "c"}))
    assert said and "To go on with the server's new tools, add --allow-schema-change, start over with --fresh," in said
    for changed in ({"server": "t"}, {"settings": {**settings, "init": "0123456789abcdef"}}):
        said = was.difference(was.model_copy(update=changed))
        assert said and said.endswith("Start over with --fresh, or choose another name with --name.")


def test_advice_leaves_out_what_cannot_be_typed() -> None:
    settings = {"judge.rubric": "a1b2c3d4e5f60718", "replay.of": "r"}
    was = RunIdentity(server="s", base_model=TINY, seed=1, schema_hash="a", scenarios_hash="b", settings=settings)
    said = was.difference(was.model_copy(update={"settings": {**settings, "judge.rubric": None}}))
    assert said and said.endswith("Start over with --fresh, or choose another name with --name.")
    said = was.difference(was.model_copy(update={"seed": 0}))
    assert said and "To go on with it, add seed=1, start over" in said


def test_a_dropped_setting_does_not_distinguish_runs() -> None:
    was = {"unsloth.use": True, "unsloth.disable_log_stats": True, "unsloth.dtype": "float16"}
    old = RunIdentity(server="s", base_model=TINY, seed=0, schema_hash="a", scenarios_hash="b", settings=was)
    assert old.difference(old.model_copy(update={"settings": {}})) is None
