"""Every example of the documentation works when pasted: commands are parsed, files loaded, snippets compiled or run."""

import itertools
import json
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.exceptions import TyperException

from mcp_rl.cli import app, main
from mcp_rl.config.load import load_config
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.plugins.resolve import resolve_servers
from mcp_rl.runs.sft.demonstrations import read_source
from mcp_rl.scenarios.files import read_scenario_file
from mcp_rl.toolserver.client_files.client_file import client_files
from tests.docs.examples import ROOT, Example, compiled, examples, inline_commands

EXAMPLES = examples()
COMMANDS = [example for example in EXAMPLES if example.kind == "command"]
NOT_TRIED = {
    "docs/cluster.md: ray start": "needs Ray; tests/backends/test_cluster.py starts nodes",
    "docs/export.md: vllm serve base": "needs vLLM; tests/vllm serve an export with these options",
    "docs/export.md: hf auth login": "asks for a token; tests/runs/export/test_hub.py pushes with one",
    "docs/export.md: git clone": "needs the network",
    "docs/export.md: pip install sentencepiece": "needs the network",
    "docs/install.md: docker": "needs Docker; a workflow builds the container and trains a step in it",
    "docs/install.md: uvx --torch-backend": "needs the network",
    "docs/tutorials/agent.md: OPENAI_BASE_URL": "needs a served model; tests/inference/openai_api asks one",
    "docs/verify.md: ssh-keygen": "needs OpenSSH; tests/runs/finished/test_verify.py signs with a key of its form",
    "docs/vllm.md: python -m venv": "makes an environment with vLLM, as `make test-vllm` does",
    "docs/vllm.md: .venv-vllm/bin/pip": "needs the network",
    "docs/vllm.md: vllm serve Qwen": "needs vLLM and a GPU",
}
"""Commands of other programs that no test here can check, by page and beginning: the reason."""
OUTPUTS = {
    "docs/architecture.md: tool server ──►": "a drawing",
    "docs/cassettes.md: The cassette calls.jsonl does not hold": "an error",
    "docs/engine.md: … </tool_call>": "tokens, side by side",
    "docs/processes.md: Ended what an earlier run left behind": "a printed line",
    "docs/running.md: step 12/120": "a printed line",
    "docs/runs.md: step   split": "a printed table",
    "docs/runs.md: calc: 20 steps": "printed lines",
    "docs/runs.md: .mcp_rl/default/models/calc-from-15 begins": "printed lines",
    "docs/runs.md: 20 steps of": "printed lines",
    "docs/scenarios.md: 120 of 437 scenarios": "printed lines",
    "docs/tutorials/server.md: shop over stdio": "printed lines",
    "docs/tutorials/server.md: shop is fit": "a printed line",
    "docs/tutorials/server.md: 200 scenarios": "printed lines",
    "docs/tutorials/server.md: base model": "printed lines",
    "docs/tutorials/server.md: 20 steps": "printed lines",
    "docs/tutorials/server.md: you": "a conversation",
    "docs/tutorials/reward.md: wishes.jsonl holds": "a printed line",
    "docs/tutorials/reward.md: scripted:reference": "printed lines",
    "docs/tutorials/agent.md: shop: 12": "printed lines",
    "docs/tutorials/scale.md: in all": "a printed table",
    "docs/tutorials/scale.md: About": "printed lines",
    "docs/verify.md: .mcp_rl/default/models/calc:": "printed lines",
    "docs/verify.md: proven      files": "printed lines",
}
"""Blocks that a reader reads and does not paste, by page and beginning: what they are."""
_HERE = "tests/docs/test_fragments.py::"
FRAGMENTS = {
    "docs/agents.md: import asyncio": "tests/rollouts/test_agents.py::test_a_program_that_says_what_our_loop_says",
    "docs/engine.md: async with LocalEngine(": f"{_HERE}test_an_engine_plays_two_turns",
    "docs/export.md: from peft import PeftModel": "tests/runs/export/test_export.py::test_the_page_loads_an_adapter",
    "docs/rewards.md: group = await ruler_score_group(": f"{_HERE}test_a_judge_scores_a_group",
    "docs/api.md: import random": "tests/test_python_example.py::test_the_python_example_trains_two_steps",
    "docs/sandbox.md: async with connect(": (
        "tests/toolserver/test_sandbox.py::test_several_states_take_turns_on_one_process"
    ),
    "docs/serve.md: import json": f"{_HERE}test_a_client_asks_a_served_model",
    "docs/serve.md: async with LocalBackend()": f"{_HERE}test_a_loop_of_ones_own_asks_a_model_in_training",
    "docs/serve.md: async def episode(": f"{_HERE}test_a_loop_of_ones_own_builds_a_trajectory",
    "docs/unsloth.md: backend = LocalBackend(": f"{_HERE}test_a_backend_loads_a_base_in_4_bits",
}
"""Python that needs more than its page has, by page and beginning: the test that runs it."""


PROGRAMS = ("docs/plugins.md", *(f"docs/tutorials/{name}.md" for name in ("server", "reward", "agent")))
"""Pages whose Python is whole files, which tests/plugins and tests/docs/test_tutorials.py run."""


def found(table: dict[str, str], example: Example) -> str | None:
    return next((reason for start, reason in table.items() if example.id.startswith(start)), None)


@pytest.mark.parametrize("table", [NOT_TRIED, OUTPUTS, FRAGMENTS], ids=["not tried", "outputs", "fragments"])
def test_no_entry_of_a_table_is_stale(table: dict[str, str]) -> None:
    ids = [example.id for example in EXAMPLES]
    assert [start for start in table if not any(id.startswith(start) for id in ids)] == []


@pytest.mark.parametrize("reason", [*NOT_TRIED.values(), *OUTPUTS.values(), *FRAGMENTS.values()])
def test_a_reason_names_what_there_is(reason: str) -> None:
    for place in re.findall(r"tests/[\w/.:]+", reason):
        file, _, name = place.partition("::")
        assert (ROOT / file).exists() and (not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The checkout as a reader sees it, with the files and variables that the pages tell of."""
    folder = tmp_path_factory.mktemp("reader")
    for path in ROOT.iterdir():
        if not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    entry = {"command": "node", "args": ["server.mjs"]}
    clients = json.dumps({"mcpServers": dict.fromkeys(("github", "weather", "calendar", "tracker"), entry)})
    for file in (folder / "home/.cursor/mcp.json", folder / ".vscode/mcp.json", folder / "mcp.json"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(clients)
    for example in EXAMPLES:
        if example.page in PROGRAMS and (name := re.match(r"# (\w+\.py)\n", example.text)):
            (folder / name[1]).write_text(example.text)
    for name in ("my_server.py", "bookings.py", "my.toml", ".venv-vllm/bin/python"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HOME", str(folder / "home"))
        assert main(["servers", "new", "my_shop"]) == 0
        yield folder


def id_of(example: Example) -> str:
    return f"{example.page}:{example.line}"


def own_words(example: Example) -> list[str] | None:
    """Return the words after `mcp-rl`, or None for another program."""
    words = example.words
    if words[0] == "mcp-rl":
        return words[1:]
    return ["train", *words[words.index("mcp_rl.train") + 1 :]] if "mcp_rl.train" in words else None


OWN = [(example, words) for example in COMMANDS if (words := own_words(example)) is not None]


@pytest.mark.parametrize(("example", "words"), OWN, ids=[id_of(example) for example, _ in OWN])
def test_a_command_is_read_and_a_run_resolved(example: Example, words: list[str], folder: Path) -> None:
    job = typer.main.get_command(app).main(args=words, prog_name="mcp-rl", standalone_mode=False)
    assert callable(job), words
    if words[0] == "train":  # --dry-run would look for keys, GPUs and files that a reader has made before
        config = load_config(file=job.file, overrides=job.overrides, options=job.options)
        if any(server.startswith("registry:") for server in config.server):
            return  # tests/toolserver/test_mcp_registry.py looks servers up
        resolve_servers(config.server, config.transport, plugins=load_plugins(config.plugins), tools=config.tools)
        return
    for word in words:
        if re.match(r"[a-z_]+(\.[a-z_]+)*=", word):
            load_config(overrides=[word], options={"server": "mcp_calculator"})
    if words[0] in ("servers", "plugins") and len(words) == 1:
        assert not job()


@pytest.mark.parametrize("command", inline_commands())
def test_a_command_in_a_sentence_is_read(command: str) -> None:
    try:
        job = typer.main.get_command(app).main(args=shlex.split(command)[1:], standalone_mode=False)
    except TyperException as error:  # a sentence may name an option without its value
        assert re.search("requires an argument|Missing argument", error.format_message()), error
    else:
        assert callable(job)


OTHERS = [example for example in COMMANDS if own_words(example) is None]


@pytest.mark.parametrize("example", OTHERS, ids=id_of)
def test_another_command_names_what_there_is(example: Example, folder: Path) -> None:
    if found(NOT_TRIED, example):
        return
    program, *words = example.words
    if program == "make":
        rules = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{re.escape(words[0])}:", rules, re.MULTILINE)
        called = next((word.removeprefix("ARGS=") for word in words if word.startswith("ARGS=")), "")
        assert all((ROOT / word).exists() for word in called.split() if word.startswith("tests/"))
    elif program == "python":
        file = words[1].replace(".", "/") + ".py" if words[0] == "-m" else words[0]
        source = (ROOT / file).read_text(encoding="utf-8")
        assert [word for word in words if word.startswith("--") and f'"{word}"' not in source] == []
    elif program == "npx":
        options = dict(itertools.pairwise(words))
        if "--config" in options:
            known = client_files(Path(options["--config"])).names
            assert options.get("--server", "mcp_notes") in known
        assert all(Path(word).is_file() for word in words if word.endswith(".mjs"))
    elif program in ("pip", "uv"):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert set(re.findall(r"mcp-rl\[(\w+)\]", example.text)) <= project["optional-dependencies"].keys()
    else:
        assert os.access(ROOT / program, os.X_OK), f"{example.text}: neither checked nor in NOT_TRIED"


SNIPPETS = [example for example in EXAMPLES if example.kind == "python"]


@pytest.mark.parametrize("example", SNIPPETS, ids=id_of)
def test_python_compiles_and_runs(example: Example, folder: Path) -> None:
    compiled(example.text, example.page)
    if example.page not in PROGRAMS and not found(FRAGMENTS, example):
        exec(compile(example.text, example.page, "exec"), {"__name__": "__main__"})


FILES = [example for example in EXAMPLES if example.kind in ("json", "jsonl", "toml")]


@pytest.mark.parametrize("example", FILES, ids=id_of)
def test_a_file_is_read_by_its_loader(
    example: Example, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"file.{example.kind}"
    file.write_text(example.text)
    if example.kind == "toml":
        assert tomllib.loads(example.text)
    elif "mcpServers" in example.text:
        monkeypatch.setenv("TRACKER_TOKEN", "x")
        assert client_files(file).names
    elif '"messages"' in example.text:
        assert read_source(file)
    else:
        assert read_scenario_file(file, load_plugins([]).server("mcp_calculator"))


def test_every_output_is_in_the_table() -> None:
    assert [example.id for example in EXAMPLES if example.kind == "output" and not found(OUTPUTS, example)] == []
