"""Python on the pages that needs a model, a judge or a run: given those, it does what the page says."""

import ast
import json
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.judge_faults import by_answer
from benchmarks.judge_server import serve
from mcp_rl.backends.local import LocalBackend
from mcp_rl.config import TINY, UnslothConfig
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.local import LocalEngine
from mcp_rl.model import TrainableModel
from mcp_rl.rewards.ruler import ruler_score_group
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import CallRecord, Segment, Trajectory, TrajectoryGroup
from tests.docs.examples import examples
from tests.inference.openai_api.conftest import ASKED, TOOLS, ServedTiny, policies, tiny

__all__ = ["policies", "tiny"]
ADDRESS = "http://127.0.0.1:8000"
SCENARIO = McpScenario(task_description="Use add with a 3 and b 4.", server_params=StdioServer(command="unused"))


async def run(page: str, beginning: str, names: dict[str, Any], change: tuple[str, str] = ("", "")) -> dict[str, Any]:
    """Run the snippet of a page that begins so, in which `await` may stand at the top; return all names."""
    [text] = [e.text for e in examples() if e.page == page and e.kind == "python" and e.text.startswith(beginning)]
    assert change[0] in text
    code = compile(text.replace(*change), page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if isawaitable(done := eval(code, names)):
        await done
    return names


async def test_an_engine_plays_two_turns(tiny: ServedTiny) -> None:
    chat, model = tiny.chat, tiny.policies._base
    result = chat.continuation([{"role": "tool", "content": "7"}])
    names = {"LocalEngine": LocalEngine, "Sampling": Sampling, "chat": chat, "model": model}
    names |= {"prompt_ids": chat.initial(ASKED, TOOLS), "tool_result_ids": result}
    found = await run("docs/engine.md", "async with LocalEngine(", names)
    assert "tool_call" in chat.decode(found["first"].token_ids) and found["second"].token_ids


async def test_a_judge_scores_a_group() -> None:
    messages = [{"role": "user", "content": "Add 3 and 4."}]
    group = TrajectoryGroup(scenario=SCENARIO)
    for answer in ("good", "bad"):
        said = [*messages, {"role": "assistant", "content": answer}]
        group.trajectories.append(Trajectory(scenario_id=SCENARIO.id, messages=said))
    with serve(by_answer) as server:
        names = {"group": group, "ruler_score_group": ruler_score_group}
        change = ('"openai/gpt-4.1-mini"', f'"openai/judge", base_url="{server.url}"')
        found = await run("docs/rewards.md", "group = await ruler_score_group(", names, change)
    assert found["group"].rewards == [1.0, 0.0]


async def test_a_client_asks_a_served_model(tiny: ServedTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / ".mcp_rl" / "default" / "serving" / "mcp_calculator-tiny.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"model": "tiny", "messages": ASKED, "tools": TOOLS, "max_tokens": 64}))
    shown: list[Any] = []
    await run("docs/serve.md", "import json", {"print": shown.append}, (ADDRESS, tiny.url))
    assert shown[0].role == "assistant"


async def test_a_loop_of_ones_own_asks_a_model_in_training(tmp_path: Path) -> None:
    model = TrainableModel("calc-001", "demo", TINY, base_path=tmp_path)
    backend = LocalBackend(in_process=True, max_context=512)
    names = {"model": model, "messages": ASKED, "tools": TOOLS, "LocalBackend": lambda: backend}
    assert (await run("docs/serve.md", "async with LocalBackend()", names))["said"].choices[0].message


async def test_a_loop_of_ones_own_builds_a_trajectory(tiny: ServedTiny) -> None:
    async def call(asked: Any) -> str:
        return "7"

    names: dict[str, Any] = {"Segment": Segment, "Trajectory": Trajectory, "CallRecord": CallRecord, "run": call}
    episode = (await run("docs/serve.md", "async def episode(", names))["episode"]
    played = await episode(tiny.client(), TrainableModel("tiny", "demo", TINY), SCENARIO, TOOLS)
    assert any(played.segments[0].sampled) and len(played.messages) > 1
    assert len(played.calls) == sum(message["role"] == "tool" for message in played.messages)


async def test_a_backend_loads_a_base_in_4_bits(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")

    def in_process(unsloth: UnslothConfig) -> LocalBackend:
        return LocalBackend(in_process=True, unsloth=unsloth)

    model = TrainableModel("calc-001", "demo", TINY, base_path=tmp_path)
    names = {"LocalBackend": in_process, "UnslothConfig": UnslothConfig, "model": model}
    backend = (await run("docs/unsloth.md", "backend = LocalBackend(", names))["backend"]
    assert backend.loaded["quantisation"] == "4-bit"
    await backend.close()
