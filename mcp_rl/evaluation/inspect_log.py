"""Write episodes as a log of inspect_ai, for `inspect view` and its analyses. Needs the package inspect-ai.

A scenario is a sample, its episodes are epochs. A stop reason becomes inspect's limit if they mean the same; the exact
stop reason is in each sample's metadata.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from statistics import fmean
from typing import TYPE_CHECKING, Any

from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalError,
    EvalLog,
    EvalMetric,
    EvalResults,
    EvalSample,
    EvalSampleLimit,
    EvalScore,
    EvalSpec,
    write_eval_log,
)
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.scorer import CORRECT, INCORRECT, Score
from inspect_ai.tool import ToolCall, ToolCallError

from mcp_rl.evaluation.measure import PROMPT_TOKENS, said_tokens, successes
from mcp_rl.evaluation.statistics import success_interval
from mcp_rl.system.version import own_version
from mcp_rl.trajectory import StopReason, Trajectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mcp_rl.evaluation.folder import EpisodeFile
    from mcp_rl.scenario import McpScenario

_LIMITS = {
    StopReason.MAX_TURNS: "turn",
    StopReason.MAX_TOKENS: "token",
    StopReason.MAX_TURN_TOKENS: "token",
    StopReason.CONTEXT_FULL: "context",
    StopReason.TIMEOUT: "time",
    StopReason.MAX_TOOL_CALLS: "custom",
}


def write_log(file: EpisodeFile, folder: Path, *, only_successful: bool = False) -> Path | None:
    """Write the episodes of one file as `<label>.eval`; None if none is left. Raises the errors of writing."""
    samples = [
        _sample(group.scenario, place, trajectory, file)
        for group, place, trajectory in file.episodes(only_successful=only_successful)
    ]
    if not samples:
        return None
    made = datetime.fromtimestamp(file.path.stat().st_mtime, UTC).isoformat()
    epochs = max(sample.epoch for sample in samples)
    name = "".join(c if c.isalnum() or c in "._@-" else "-" for c in file.label)
    log = EvalLog(
        status="success",
        eval=EvalSpec(
            created=made,
            task=f"mcp-rl/{file.server or 'episodes'}",
            task_id=name,
            run_id=name,
            eval_id=name,
            dataset=EvalDataset(name=file.path.name, samples=len({sample.id for sample in samples})),
            model=file.label,
            config=EvalConfig(epochs=epochs),
            packages=_packages(),
            metadata={**file.about, "tools": file.tools} if file.tools else file.about,
        ),
        results=_results(file, samples),
        samples=samples,
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.eval"
    write_eval_log(log, str(path))
    return path


def _sample(scenario: McpScenario, place: int, trajectory: Trajectory, file: EpisodeFile) -> EvalSample:
    prompt = int(trajectory.metrics.get(PROMPT_TOKENS, 0))
    said = int(said_tokens(trajectory))
    usage = ModelUsage(input_tokens=prompt, output_tokens=said, total_tokens=prompt + said)
    output = ModelOutput.from_content(file.label, trajectory.final_answer or "")
    output.usage = usage
    limit = _LIMITS.get(trajectory.stop_reason)
    return EvalSample(
        id=scenario.id,
        epoch=place + 1,
        input=scenario.task_description,
        target=_target(scenario),
        messages=list(_messages(trajectory)),
        output=output,
        scores=_scores(trajectory),
        metadata={
            "stop_reason": trajectory.stop_reason.value,
            "seed": trajectory.seed,
            "reference": [call.model_dump(mode="json") for call in scenario.reference],
            "metrics": trajectory.metrics,
        },
        model_usage={file.label: usage},
        total_time=trajectory.seconds,
        turn_count=trajectory.turns,
        limit=EvalSampleLimit(type=limit, limit=0, reason=trajectory.stop_reason.value) if limit else None,  # type: ignore[arg-type]
        error=EvalError(message=trajectory.fault, traceback="", traceback_ansi="") if trajectory.fault else None,
    )


def _messages(trajectory: Trajectory) -> Iterator[ChatMessage]:
    """Yield the episode's messages. Tool messages answer the calls in their order."""
    answered = iter(trajectory.calls)
    for message in trajectory.messages:
        content = str(message.get("content") or "")
        match message["role"]:
            case "system":
                yield ChatMessageSystem(content=content)
            case "assistant":
                calls = [_call(call) for call in message.get("tool_calls") or []]
                yield ChatMessageAssistant(content=content, tool_calls=calls or None)
            case "tool":
                record = next(answered, None)
                error = None
                if record is not None and record.is_error:
                    error = ToolCallError("unknown" if record.sent else "parsing", content)
                yield ChatMessageTool(
                    content=content,
                    tool_call_id=message.get("tool_call_id"),
                    function=message.get("name"),
                    error=error,
                )
            case _:
                yield ChatMessageUser(content=content)


def _call(call: dict[str, Any]) -> ToolCall:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
        problem = None if isinstance(arguments, dict) else "The arguments are not a JSON object."
    except (ValueError, RecursionError) as error:
        arguments, problem = None, str(error)
    if problem:
        arguments = {"text": function["arguments"]}
    return ToolCall(id=call["id"], function=function["name"], arguments=arguments, parse_error=problem)


def _scores(trajectory: Trajectory) -> dict[str, Score] | None:
    scores: dict[str, Score] = {}
    if trajectory.success is not None:
        scores["success"] = Score(
            value=CORRECT if trajectory.success else INCORRECT,
            answer=trajectory.final_answer,
            explanation=trajectory.explanation,
        )
    if trajectory.reward is not None:
        scores["reward"] = Score(value=trajectory.reward, explanation=trajectory.explanation)
    return scores or None


def _target(scenario: McpScenario) -> str:
    expected = scenario.verifier.expected if scenario.verifier else None
    if expected is None:
        return scenario.reference_answer or ""
    return expected if isinstance(expected, str) else json.dumps(expected, ensure_ascii=False)


def _results(file: EpisodeFile, samples: Sequence[EvalSample]) -> EvalResults:
    """Return the accuracy as the mean over scenarios, with its 95 % interval."""
    outcomes = [found for group in file.groups if (found := successes(group))]
    metrics: dict[str, float] = {}
    if outcomes:
        low, high = success_interval(outcomes)
        metrics = {"accuracy": fmean(map(fmean, outcomes)), "ci95_low": low, "ci95_high": high}
    score = EvalScore(
        name="success",
        scorer="success",
        metrics={name: EvalMetric(name=name, value=value) for name, value in metrics.items()},
    )
    completed = sum(sample.error is None for sample in samples)
    return EvalResults(total_samples=len(samples), completed_samples=completed, scores=[score] if metrics else [])


def _packages() -> dict[str, str]:
    version = own_version()
    return {"mcp_rl": version} if version else {}
