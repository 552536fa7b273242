"""docs/plugins.md: all of its code runs, and it covers every hook and every field of a server."""

import ast
import dataclasses
import inspect
import itertools
import json
import re
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hatchling.build import build_wheel

from mcp_rl.cli import main
from mcp_rl.config import RunConfig
from mcp_rl.plugins.manager import HOOKS, Plugins, load_plugins
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.runs.trackers.trackers import Trackers
from mcp_rl.scenario import McpScenario, StdioServer, Verifier
from mcp_rl.scenarios.sources import made_scenarios
from mcp_rl.toolserver.elicitation import Question
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.trajectory import Trajectory

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
BLOCKS = {
    match[1] or match[2]: match[3]
    for match in re.finditer(
        r"(?:^The file `(\S+)`:\n\n)?^```\w+\n(?:# (\S+)\n)?(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL
    )
}
"""File name, from the line before a block or its first line, to the text of the block."""
TASK = McpScenario(
    task_description="Say it.", server_params=StdioServer(command="x"), verifier=Verifier(kind="shouted")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files of the page, as a reader would save them."""
    folder = tmp_path_factory.mktemp("page")
    for name, text in BLOCKS.items():
        (folder / name).write_text(text)
    return folder


def loaded(folder: Path, *names: str) -> Plugins:
    plugins = load_plugins([folder / name for name in names])
    assert plugins.problems == []
    return plugins


def answered(answer: str, **fields: Any) -> Trajectory:
    return Trajectory(scenario_id=TASK.id, messages=[{"role": "assistant", "content": answer}], **fields)


def test_every_block_of_code_has_a_file_name_and_a_test() -> None:
    assert len(re.findall(r"^```\w+$", TEXT, re.MULTILINE)) == len(BLOCKS)
    tests = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in BLOCKS if f'"{name}"' not in tests] == []


def test_every_hook_has_a_line_and_a_whole_example() -> None:
    assert len(HOOKS) == 9
    code = "".join(BLOCKS.values())
    for hook in HOOKS:
        assert f"| `{hook}(" in TEXT, f"docs/plugins.md has no line on the hook {hook}"
        assert f"@hookimpl\ndef {hook}(" in code, f"docs/plugins.md has no example for the hook {hook}"
    sections = TEXT.partition("\n## Hooks\n")[2]
    for name in re.findall(r"^```python\n# (\S+)", sections, re.MULTILINE):
        assert len([line for line in BLOCKS[name].splitlines() if line.strip()]) < 15, name


def test_every_field_of_a_server_is_described() -> None:
    source = Path(inspect.getsourcefile(ToolServer) or "").read_text(encoding="utf-8")
    [body] = [node.body for node in ast.parse(source).body if getattr(node, "name", "") == "ToolServer"]
    pairs = itertools.pairwise(body)
    described = {
        one.target.id
        for one, two in pairs
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        if isinstance(two, ast.Expr) and isinstance(two.value, ast.Constant) and isinstance(two.value.value, str)
    }
    assert described == {field.name for field in dataclasses.fields(ToolServer)}  # the site's page api.html has them
    table = TEXT.partition("### Fields of a ToolServer")[2].partition("\n## ")[0]
    named = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]+)", table, re.MULTILINE)))
    assert named and set(named) <= described


def test_every_loaded_example_implements_what_it_is_there_for(folder: Path) -> None:
    names = [name for name, text in BLOCKS.items() if "@hookimpl" in text]
    plugins = loaded(folder, *names)
    hooks = {hook for plugin in plugins.loaded if plugin.origin.startswith(str(folder)) for hook in plugin.hooks}
    assert hooks == set(HOOKS)


def test_the_documented_server_passes_its_own_checks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)

    def run(*words: str) -> str:
        assert main(list(words)) == 0
        return capsys.readouterr().out

    assert {"lamps_server.py", "lamps.py", "lamps.jsonl", "pyproject.toml"} <= BLOCKS.keys()
    words = ["--server", "lamps", "--plugin", "lamps.py"]
    assert "lamps.jsonl holds" in run("generate", *words, "--check", "lamps.jsonl")
    models = ["--model", "scripted:reference", "--model", "scripted:refuse"]
    few = ["--samples", "1", "--no-greedy", "--json", "tools.max_servers=1"]
    report = json.loads(run("evaluate", *words, *models, *few).splitlines()[-1])
    assert report["scenarios_from"] == "held out of 2 that its plugin brings"
    right, wrong = (model["result"]["sampled"] for model in report["models"])
    assert (right["rollouts"], right["success"], wrong["success"]) == (1, 1.0, 0.0)
    episodes = (folder / report["path"] / "episodes" / "scripted-reference.jsonl").read_text()
    assert "all lamps off please" in episodes and "You look after the lamps of a house." in episodes


def test_a_package_of_the_plugin_is_built_with_its_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = tomllib.loads(BLOCKS["pyproject.toml"])["project"]["entry-points"]["mcp_rl"]
    monkeypatch.chdir(folder)
    with zipfile.ZipFile(tmp_path / build_wheel(str(tmp_path))) as wheel:
        assert {f"{points['lamps']}.py", "lamps_server.py", "lamps.jsonl"} <= set(wheel.namelist())


async def test_a_reset_function_runs_before_every_episode(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    server = loaded(folder, "tidy.py").server("tidy_lamps")
    async with Sessions(server=server) as sessions:
        for _ in range(2):
            async with sessions.lease(server.params()) as lease:
                call = lease.session.connection.call
                assert (await call("burning", {})).structured == {"result": []}
                await call("switch", {"room": "cellar", "on": True})


def test_a_function_answers_a_server_that_asks_for_input(folder: Path) -> None:
    fill_in = loaded(folder, "tidy.py").server("tidy_lamps").elicitation
    assert callable(fill_in)
    form = {"type": "object", "properties": {"confirm": {"type": "boolean"}}}
    assert fill_in(Question("Sure?", form, "switch")) == {"confirm": True}
    assert fill_in(Question("Who are you?", {"properties": {"name": {}}}, "switch")) is None


async def test_a_source_makes_tasks_for_a_server(folder: Path) -> None:
    plugins = loaded(folder, "sums.py")
    server = plugins.server("mcp_calculator")
    params = server.params("stdio")
    async with Sessions(server=server) as sessions:
        made = [
            await made_scenarios("sums", plugins, sessions, server=server, params=params, recipe=Recipe(5, seed=seed))
            for seed in (1, 1, 2)
        ]
    assert made[0] == made[1] != made[2]
    assert [len(tasks) for tasks in made] == [5, 5, 5]


def test_a_verifier_and_a_reward_score(folder: Path) -> None:
    plugins = loaded(folder, "shouted.py", "brief.py")
    verdicts = [plugins.verifiers["shouted"](answered(answer), TASK).success for answer in ("YES", "yes")]
    assert verdicts == [True, False]
    assert plugins.rewards["brief"](answered("yes", turns=4), TASK) == 0.25


def test_a_backend_is_made_from_the_runs_configuration(folder: Path) -> None:
    config = RunConfig(server="x", backend="frugal", seed=7)
    backend: Any = loaded(folder, "frugal.py").backends.pick(config.backend)(config)
    assert (backend.settings.keep, backend.settings.seed, backend.config) == (1, 7, config.train)


async def test_a_tracker_writes_what_it_is_given(folder: Path, tmp_path: Path) -> None:
    config = RunConfig(server="x", trackers="table", plugins=[str(folder / "table.py")])
    async with Trackers.opened(tmp_path, config, loaded(folder, "table.py"), print) as trackers:
        trackers.log("val", 0, {"reward": 0.25})
        trackers.log("train", 1, {"reward": 0.5})
    assert (tmp_path / "table.tsv").read_text() == "val\t0\t0.25\ntrain\t1\t0.5\n"


def test_observers_look_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugins = loaded(folder, "watch.py")
    broken = SimpleNamespace(fault="The server died.")
    problems = [
        *plugins.notify("rollout_finished", scenario=TASK, trajectory=broken),
        *plugins.notify("step_finished", step=3, metrics={"reward": 0.5}),
        *plugins.notify("checkpoint_saved", step=3, path=Path("checkpoints/0003")),
    ]
    assert problems == []
    out = capsys.readouterr().out.splitlines()
    assert out == [f"{TASK.id}: The server died.", "step 3: reward 0.50", "step 3 is in checkpoints/0003"]
