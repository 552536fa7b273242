"""Common clients of a served model: LiteLLM and `mcp-rl evaluate`."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_rl.cli import main
from mcp_rl.evaluation.result import EvaluationReport
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier, scenario_lines
from mcp_rl.trajectory import TrajectoryGroup
from tests.inference.openai_api.conftest import ASKED, TOOLS, ServedTiny

CALCULATOR = StdioServer(
    command="{python}", args=("{bundled}/servers/python/mcp_calculator/server.py", "--transport", "stdio")
)


@pytest.mark.parametrize("provider", ["hosted_vllm", "openai"])
async def test_litellm_calls_tools_whole_and_streamed(tiny: ServedTiny, provider: str) -> None:
    import litellm

    asked: dict[str, Any] = {
        **{"model": f"{provider}/tiny", "api_base": f"{tiny.url}/v1", "api_key": "none"},
        **{"messages": ASKED, "tools": TOOLS, "tool_choice": "auto", "temperature": 0, "max_tokens": 64},
    }
    whole = await litellm.acompletion(**asked)
    message = whole.choices[0].message
    [call] = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 3, "b": 4})
    assert whole.choices[0].finish_reason == "tool_calls" and whole.usage.completion_tokens == 14
    chunks = [chunk async for chunk in await litellm.acompletion(**asked, stream=True)]
    [streamed] = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert streamed.function.name == "add" and streamed.function.arguments == call.function.arguments
    history = [*ASKED, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "7"}]
    then = await litellm.acompletion(**{**asked, "messages": history})
    assert "7" in then.choices[0].message.content and then.usage.prompt_tokens_details.cached_tokens > 60
    with pytest.raises(litellm.exceptions.ContextWindowExceededError):
        long = [{"role": "user", "content": "Hello there! " * 1000}]
        await litellm.acompletion(**{**asked, "messages": long}, num_retries=0)


WORDINGS = {
    "add": "Add {a} and {b}.",
    "subtract": "How much is left of {a} once {b} are gone?",
    "multiply": "What do {b} boxes of {a} make?",
    "divide": "Split {a} into {b} equal parts.",
}


def scenario(tool: str, a: int, b: int, result: float) -> McpScenario:
    return McpScenario(
        task_description=WORDINGS[tool].format(a=a, b=b),
        server_params=CALCULATOR,
        server="mcp_calculator",
        verifier=Verifier(kind="number", expected=result),
        reference=(ToolCall(tool=tool, arguments={"a": a, "b": b}),),
    )


def test_served_episodes_equal_the_models_own(
    tiny: ServedTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    scenarios = []
    for a, b in ((36, 4), (150, 30)):
        results = {"add": a + b, "subtract": a - b, "multiply": a * b, "divide": a / b}
        scenarios += [scenario(tool, a, b, result) for tool, result in results.items()]
    Path("some.jsonl").write_text(scenario_lines(scenarios))
    words = ["--server", "mcp_calculator", "--transport", "stdio", "--scenarios", "some.jsonl", "--samples", "1"]
    models = ["--model", "mcp-rl/tiny", "--model", f"openai/tiny@{tiny.url}/v1", "--greedy"]
    assert main(["evaluate", *words, *models, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    folder = Path(printed["path"])
    report = EvaluationReport.model_validate_json((folder / "report.json").read_bytes())
    itself, served = (greedy_episodes(folder / model.episodes) for model in report.models)
    assert [model.kind for model in report.models] == ["base", "chat"]
    assert len(itself) == 8 and 0 < sum(success for success, _ in itself) < 8
    assert served == itself


def greedy_episodes(path: Path) -> list[tuple[bool, list[Any]]]:
    """Return success and calls of the first, greedy episode of each group."""
    groups = [TrajectoryGroup.model_validate_json(line) for line in path.read_text().splitlines()]
    first = [next(iter(group)) for group in groups]
    return [(bool(t.success), [(c.name, c.arguments, c.result) for c in t.calls]) for t in first]
