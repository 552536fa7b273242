"""Turn a step and its episodes into spans, after OpenTelemetry's semantic conventions for generative AI and for MCP.

An episode is a trace: `invoke_agent` at its root, below it a `chat` span for each turn and an `execute_tool` span for
each call. A step or an evaluation is a trace too, with its metrics, the requests to judges and the update. Texts
(tasks, messages, arguments, results, explanations) are included only with `tracking.texts`, and secrets never.

The conventions: https://github.com/open-telemetry/semantic-conventions-genai (docs/gen-ai, of status "Development").
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from mcp_rl.system.redaction import Redaction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mcp_rl.config import RunConfig
    from mcp_rl.plugins.parts import Split
    from mcp_rl.trajectory import CallRecord, Period, Trajectory, TrajectoryGroup

PROVIDER = "mcp_rl"
Kind = Literal["step", "episode", "turn", "tool", "judge", "update"]


@dataclass
class Span:
    """A timed piece of work, such as an episode, a turn or a tool call, with its attributes and its child spans."""

    kind: Kind
    name: str
    period: Period
    attributes: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    """Kind of the error that ended it, such as `tool_error`; None if it succeeded."""
    inputs: Any = None
    """Its messages or arguments, as JSON; None without `tracking.texts`."""
    outputs: Any = None
    """Its reply or result, as JSON; None without `tracking.texts`."""
    children: list[Span] = field(default_factory=list)
    key: str = ""
    """Id of a trace within the run, such as `train/3/task/0`; the same when a later session plays the step again."""
    about: list[str] = field(default_factory=list)
    """Keys of linked traces: an episode links to its step, a request to a judge to the episodes that it judges."""


def traces(
    config: RunConfig,
    split: Split,
    step: int,
    metrics: Mapping[str, float],
    groups: Sequence[TrajectoryGroup],
    update: Period | None = None,
    most: int | None = None,
) -> list[Span]:
    """Return the trace of a step or evaluation, then the traces of its episodes.

    With `most`, only that many episodes are included. Episodes without times are left out: those without a server, and
    those that an earlier version of this program recorded. So are reference solutions that an earlier step played.
    """
    groups = [group for group in groups if group.played_in(step)]
    maker = _Maker(config, split, step)
    left = _first_of_each(groups, most)
    episodes = [
        [maker.episode(group, number, group.trajectories[number]) for number in numbers]
        for group, numbers in zip(groups, left, strict=True)
    ]
    flat = [episode for each in episodes for episode in each]
    return [*maker.step_trace(metrics, groups, episodes, update), *flat]


def _first_of_each(groups: Sequence[TrajectoryGroup], most: int | None) -> list[list[int]]:
    """Choose `most` episodes, spread over the groups; return their indices for each group."""
    timed = [[number for number, trajectory in enumerate(group) if trajectory.unix_seconds] for group in groups]
    places = sorted((place, index) for index, numbers in enumerate(timed) for place in range(len(numbers)))
    taken = set(places[:most])
    return [[n for place, n in enumerate(numbers) if (place, index) in taken] for index, numbers in enumerate(timed)]


class _Maker:
    def __init__(self, config: RunConfig, split: Split, step: int) -> None:
        self._split, self._step = split, step
        self._texts = config.tracking.texts
        self._redaction = Redaction()
        self._name = self._redaction.text(config.name)
        self._common = {
            "mcp_rl.run": self._name,
            "mcp_rl.project": config.project,
            "mcp_rl.split": split,
            "mcp_rl.step": step,
        }

    @property
    def _key(self) -> str:
        return f"{self._split}/{self._step}"

    def step_trace(
        self,
        metrics: Mapping[str, float],
        groups: Sequence[TrajectoryGroup],
        episodes: Sequence[Sequence[Span]],
        update: Period | None,
    ) -> Iterator[Span]:
        flat = [episode for each in episodes for episode in each]
        below = [request for pair in zip(groups, episodes, strict=True) for request in self._judged(*pair)]
        if update is not None:
            below.append(Span("update", "update", _period(update), dict(self._common)))
        periods = [span.period for span in (*flat, *below)]
        if not periods:
            return
        yield Span(
            "step",
            "train step" if self._split == "train" else "evaluation",
            (min(began for began, _ in periods), max(ended for _, ended in periods)),
            self._common | {f"mcp_rl.{name}": value for name, value in metrics.items()},
            children=below,
            key=self._key,
        )

    def _judged(self, group: TrajectoryGroup, episodes: Sequence[Span]) -> Iterator[Span]:
        for request in group.metadata.get("judge", {}).get("requests", ()):
            if len(request["unix_seconds"]) != 2:
                continue
            model = str(request["model"])
            yield Span(
                "judge",
                f"chat {model}",
                _period(request["unix_seconds"]),
                {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.provider.name": model.partition("/")[0],
                    "gen_ai.request.model": model,
                    "gen_ai.usage.input_tokens": request["prompt_tokens"],
                    "gen_ai.usage.output_tokens": request["completion_tokens"],
                    "mcp_rl.scenario": group.scenario.id,
                    "mcp_rl.cost_usd": request["cost_usd"],
                },
                error="unusable_reply" if request["refused"] else None,
                about=[episode.key for episode in episodes],
            )

    def episode(self, group: TrajectoryGroup, number: int, trajectory: Trajectory) -> Span:
        assert trajectory.unix_seconds is not None
        key = f"{self._key}/{group.scenario.id}/{number}"
        given, sampled = tokens = _tokens(trajectory)
        model = self._model(trajectory)
        attributes = {
            **model,
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": self._name,
            "gen_ai.conversation.id": key,
            "gen_ai.usage.input_tokens": sum(given),
            "gen_ai.usage.output_tokens": sum(sampled),
            **self._common,
            "mcp_rl.scenario": group.scenario.id,
            "mcp_rl.episode": number,
            "mcp_rl.seed": trajectory.seed,
            "mcp_rl.stop_reason": str(trajectory.stop_reason),
            **{f"mcp_rl.metrics.{name}": value for name, value in trajectory.metrics.items()},
        }
        attributes |= {} if trajectory.reward is None else {"mcp_rl.reward": trajectory.reward}
        attributes |= {} if trajectory.success is None else {"mcp_rl.success": trajectory.success}
        if trajectory.explanation and self._texts:
            attributes["mcp_rl.explanation"] = self._redaction.text(trajectory.explanation)
        messages = self._redaction.value(trajectory.messages) if self._texts else []
        opening = [message for message in messages[:2] if message["role"] in ("system", "user")]
        answer = self._redaction.text(trajectory.final_answer or "")
        return Span(
            "episode",
            f"invoke_agent {self._name}",
            _period(trajectory.unix_seconds),
            attributes,
            error=None if trajectory.stop_reason.trainable else str(trajectory.stop_reason),
            inputs=opening or None,
            outputs=[{"role": "assistant", "content": answer}] if self._texts else None,
            children=sorted([*self._turns(trajectory, messages, model, tokens), *self._calls(trajectory)], key=_began),
            key=key,
            about=[self._key],
        )

    def _model(self, trajectory: Trajectory) -> dict[str, Any]:
        version = max((max(segment.versions, default=-1) for segment in trajectory.segments), default=-1)
        return {
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._name,
            **({"gen_ai.response.model": f"{self._name}@{version}"} if version >= 0 else {}),
        }

    def _turns(
        self,
        trajectory: Trajectory,
        messages: Sequence[Mapping[str, Any]],
        model: Mapping[str, Any],
        tokens: tuple[list[int], list[int]],
    ) -> Iterator[Span]:
        periods = trajectory.turn_unix_seconds
        given, sampled = tokens
        said = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        for turn, period in enumerate(periods):
            called = any(call.turn == turn for call in trajectory.calls)
            cut = trajectory.stop_reason.truncated and turn == len(periods) - 1
            attributes = {
                **model,
                "gen_ai.operation.name": "chat",
                "gen_ai.response.finish_reasons": ["length" if cut else "tool_calls" if called else "stop"],
            }
            if len(sampled) == len(periods):
                attributes |= {
                    "gen_ai.usage.input_tokens": given[turn],
                    "gen_ai.usage.output_tokens": sampled[turn],
                }
            span = Span("turn", f"chat {self._name}", _period(period), attributes)
            if len(said) == len(periods):  # else a program held several conversations
                span.inputs, span.outputs = list(messages[: said[turn]]), [messages[said[turn]]]
            yield span

    def _calls(self, trajectory: Trajectory) -> Iterator[Span]:
        turns = trajectory.turn_unix_seconds
        for number, call in enumerate(trajectory.calls):
            ended = turns[call.turn][1] if call.turn < len(turns) else None
            period = call.unix_seconds or (ended and (ended, ended))  # a refused call takes no time
            if period:
                yield self._call(call, period, {"gen_ai.tool.call.id": f"call_{number}"})
        for call in trajectory.final_state:
            if call.unix_seconds:
                yield self._call(call, call.unix_seconds, {"mcp_rl.made_by": "verifier"})

    def _call(self, call: CallRecord, period: Period, more: Mapping[str, Any]) -> Span:
        name = call.tool or "unknown"  # the model may have made a name up, which is a text
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, **more}
        if call.unix_seconds:
            attributes["mcp.method.name"] = "tools/call"
        return Span(
            "tool",
            f"execute_tool {name}",
            _period(period),
            attributes,
            error=("tool_error" if call.unix_seconds else "refused") if call.is_error else None,
            inputs=self._redaction.value(call.arguments) if self._texts else None,
            outputs=self._redaction.text(call.result) if self._texts else None,
        )


def _tokens(trajectory: Trajectory) -> tuple[list[int], list[int]]:
    """Return for each turn the number of tokens of its prompt, and the number of sampled tokens."""
    given, sampled = [], []
    for segment in trajectory.segments:
        position = 0
        for was_sampled, tokens in groupby(segment.sampled):
            length = sum(1 for _ in tokens)
            if was_sampled:
                given.append(position)
                sampled.append(length)
            position += length
    return given, sampled


def _began(span: Span) -> float:
    return span.period[0]


def _period(period: Sequence[float]) -> Period:
    return period[0], max(period)


def message_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return an OpenAI message in the form of the conventions' `gen_ai.input.messages`."""
    if message["role"] == "tool":
        answer = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": message.get("content")}
        return {"role": "tool", "parts": [answer]}
    parts: list[dict[str, Any]] = []
    for kind, content in (("reasoning", message.get("reasoning_content")), ("text", message.get("content"))):
        parts += [{"type": kind, "content": content}] if content else []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        parts.append(
            {"type": "tool_call", "id": call.get("id"), "name": function["name"], "arguments": _json(function)}
        )
    return {"role": message["role"], "parts": parts}


def _json(function: Mapping[str, Any]) -> Any:
    try:
        return json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return function["arguments"]
