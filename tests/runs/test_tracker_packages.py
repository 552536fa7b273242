"""Each tracker with its real package: `make test-trackers` installs those that the development environment lacks."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.runs.judged_episode import SECRET
from tests.runs.weave_server import serving_weave

ROOT = Path(__file__).parents[2]
PROGRAM = """
import anyio, json, sys
from pathlib import Path
from mcp_rl.config import RunConfig
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.runs.trackers import trackers as parent
from mcp_rl.runs.trackers.trackers import Trackers
from tests.runs.judged_episode import SECRET, judged_episode

parent._START_SECONDS = parent._SILENCE_SECONDS = parent._CLOSE_SECONDS = 120.0
parent._TELL_SECONDS = 120.0
name, texts = sys.argv[1:]
run = Path("runs/default/models/mine")
tracking = {"texts": texts == "texts"}
config = RunConfig(server=f"x --token {SECRET}", name="mine", trackers=name, output_dir="runs", tracking=tracking)


async def session(*steps):
    async with Trackers.opened(run, config, load_plugins(), print) as trackers:
        for step in steps:
            episodes = run / f"trajectories/train/{step:04d}.jsonl"
            episodes.parent.mkdir(parents=True, exist_ok=True)
            episodes.write_text(judged_episode().model_dump_json() + "\\n")
            trackers.log("train", step, {"reward": step / 4}, episodes, (1013.0, 1014.0))
        await trackers.started()
        record = run / f"trackers/{name}.json"
        with anyio.fail_after(120):
            while not record.exists() or json.loads(record.read_text()) != {"train": steps[-1]}:
                await anyio.sleep(0.1)


async def main():
    await session(1, 2)
    await session(2, 3)  # step 2 is played again


anyio.run(main)
"""


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}: `make test-trackers`")


def track(folder: Path, name: str, *, texts: bool = True, **variables: str) -> Path:
    """Log three steps with a tracker, in two sessions, without any login of this machine; return the run's folder."""
    kept = {
        n: v for n, v in os.environ.items() if not n.startswith(("WANDB_", "MLFLOW_", "TRACKIO_", "OTEL_", "WEAVE_"))
    }
    environment = kept | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "HOME": str(folder), "A_TOKEN": SECRET}
    command = [sys.executable, "-c", PROGRAM, name, "texts" if texts else "none"]
    done = subprocess.run(command, cwd=folder, env=environment | variables, capture_output=True, text=True, timeout=200)
    run = folder / "runs/default/models/mine"
    log = (run / "logs/trackers.log").read_text() if (run / "logs/trackers.log").exists() else ""
    assert (done.returncode, done.stdout) == (0, ""), done.stderr + log
    return run


def files_below(folder: Path) -> dict[str, bytes]:
    """Return the files that trackers wrote: all but the episodes of the run itself."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "trajectories" not in path.parts
    }


def test_tensorboard_shows_a_table_of_episodes(tmp_path: Path) -> None:
    run = track(tmp_path, "tensorboard")
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    shown = events.Tensors("train/episodes/text_summary")
    assert {event.step for event in shown} == {1, 2, 3}
    cells = [cell.decode() for cell in shown[0].tensor_proto.string_val]
    columns, row = cells[: len(cells) // 2], cells[len(cells) // 2 :]
    told = dict(zip(columns, row, strict=True))
    assert (told["task"], told["answer"], told["reward"], told["calls"]) == ("Use ${A_TOKEN}.", "Done.", "0.25", "3")
    assert not any(SECRET.encode() in content for content in files_below(tmp_path).values())


@needs("wandb")
def test_wandb_stays_offline_without_a_login_or_secrets(tmp_path: Path) -> None:
    run = track(tmp_path, "wandb")
    files = files_below(tmp_path)
    assert not [name for name, content in files.items() if SECRET.encode() in content]
    (first, again) = sorted(path for path in run.rglob("*.wandb"))
    assert first.name == again.name, "both sessions are one run"
    assert b"train/reward" in first.read_bytes() and json.dumps("mcp-rl/tiny").encode() in first.read_bytes()
    tables = [json.loads(content) for name, content in files.items() if name.endswith(".table.json")]
    assert len(tables) == 3 and all("Use ${A_TOKEN}." in table["data"][0] for table in tables)


@needs("trackio")
def test_trackio_continues_its_run_and_has_traces(tmp_path: Path) -> None:
    track(tmp_path, "trackio", TRACKIO_DIR=str(tmp_path / "trackio"))
    program = """
import json
from trackio.sqlite_storage import SQLiteStorage
(run,) = SQLiteStorage.get_runs("default")
print(json.dumps([SQLiteStorage.get_logs("default", run), SQLiteStorage.get_traces("default", run)], default=str))
"""
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "HOME": str(tmp_path)}
    read = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    logs, traces = json.loads(read.stdout.splitlines()[-1])
    rewards = [(line["step"], line["train/reward"]) for line in logs if "train/reward" in line]
    assert rewards == [(1, 0.25), (2, 0.5), (3, 0.75)] and len(traces) == 3
    assert "Use ${A_TOKEN}." in json.dumps(traces[0]) and "execute_tool add" in json.dumps(traces[0])
    assert not any(SECRET.encode() in content for content in files_below(tmp_path).values())


@needs("mlflow")
def test_mlflow_continues_its_run_and_has_traces(tmp_path: Path) -> None:
    track(tmp_path, "mlflow")
    program = """
import json, mlflow
client = mlflow.MlflowClient("sqlite:///runs/mlflow.db")
mlflow.set_tracking_uri("sqlite:///runs/mlflow.db")
experiment = client.get_experiment_by_name("default").experiment_id
(run,) = client.search_runs([experiment])
rewards = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "train/reward")]
found = mlflow.search_traces(locations=[experiment], return_type="list")
spans = [[s.name, s.span_type, s.start_time_ns, s.end_time_ns, s.inputs] for s in found[0].data.spans]
print(json.dumps([run.info.status, run.info.run_name, rewards, len(found), spans]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    status, name, rewards, count, spans = json.loads(done.stdout.splitlines()[-1])
    assert (status, name, count) == ("FINISHED", "mine", 3)
    assert rewards == [[1, 0.25], [2, 0.5], [3, 0.75]]
    assert spans[0][:4] == ["invoke_agent mine", "AGENT", 1000 * 10**9, 1007 * 10**9]
    assert ["execute_tool add", "TOOL", 1003 * 10**9, 1003_500_000_000, {"a": "${A_TOKEN}"}] in spans
    assert not any(SECRET.encode() in content for content in files_below(tmp_path).values())


@needs("weave")
def test_weave_gets_episodes_with_their_times(tmp_path: Path) -> None:
    with serving_weave() as server:
        track(tmp_path, "weave", **server.variables)
    names = [call["display_name"] for call in server.calls]
    assert names.count("invoke_agent mine") == 3 and names.count("execute_tool add") == 3
    (add, *_) = [call for call in server.calls if call["display_name"] == "execute_tool add"]
    assert add["inputs"] == {"arguments": {"a": "${A_TOKEN}"}} and add["parent_id"]
    assert add["started_at"].startswith("1970-01-01T00:16:43")
    (root, *_) = [call for call in server.calls if call["display_name"] == "invoke_agent mine"]
    assert root["output"]["reward"] == 0.25 and root["attributes"]["mcp_rl.scenario"] == "task"
    assert not any(SECRET in str(body) for _, body in server.sent)


@needs("weave")
def test_weave_without_a_login_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="Weave keeps nothing on this machine"):
        track(tmp_path, "weave")
