"""Write a Modelfile for Ollama, with the model's chat template translated into Go's text/template.

A jinja template cannot be translated in general. Its texts are cut out of rendered conversations with marks in them, as
the token-exact continuation is, and put around the fields that Ollama fills in. A template with anything but system,
tools, turns, Hermes calls and results is refused in one sentence.
"""

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_rl.errors import ConfigError
from mcp_rl.inference.chat.template import render_chat

CONTEXT = 8192
"""Tokens of a conversation, at most the model's own; Ollama's default of 4,096 is short for many tools."""
_SYSTEM, _USER, _SAID = "\u2402system\u2403", "\u2402user\u2403", "\u2402said\u2403"
_RESULTS = ("\u2402one\u2403", "\u2402two\u2403")
_CALLS = ("first_function", "second_function")
_ARGUMENTS = {"argument": 7}
_TOOLS = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}}
    for name in ("one_tool", "other_tool")
]
Messages = Sequence[dict[str, Any]]
Render = Callable[[Messages, Sequence[dict[str, Any]], bool], str]


def modelfile(tokenizer: Any, weights: str, *, positions: int, license: str | None, ends: Sequence[int] = ()) -> str:
    """Return the whole file.

    `weights` is the value of FROM; `ends` are the tokens that end a turn besides the tokenizer's own. Raises
    ConfigError where the chat template does not follow Hermes.
    """

    def render(messages: Messages, tools: Sequence[dict[str, Any]], prompt: bool) -> str:
        return render_chat(tokenizer, messages, tools, prompt=prompt)

    template = go_template(render, str(tokenizer.eos_token))
    known = [int(tokenizer.eos_token_id), *(id for id in ends if 0 <= id < len(tokenizer))]
    stops = dict.fromkeys(str(tokenizer.decode([id], skip_special_tokens=False)) for id in known)
    lines = [f"FROM {weights}", f'TEMPLATE """{template}"""']
    lines += [f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}" for stop in stops]
    lines.append(f"PARAMETER num_ctx {min(CONTEXT, positions)}")
    if license:
        lines.append(f'LICENSE """{license}"""')
    return "\n".join(lines) + "\n"


def go_template(render: Render, end: str) -> str:
    """Return the chat template as Go's text/template. `end` ends a turn. Raises ConfigError where it cannot be cut."""
    try:
        frames = _frames(render, end)
        template = _heads(render, frames) + _turns(frames)
    except ValueError as error:
        raise ConfigError(
            f"The chat template cannot be translated for Ollama, because it does not write {error} as Hermes does; "
            "export the model as merged or gguf."
        ) from error
    if '"""' in template:
        raise ConfigError(
            'The chat template cannot be translated for Ollama, because it holds """; export the model as gguf.'
        )
    return template


@dataclass(frozen=True)
class _Frames:
    """The texts that a chat template writes around what Ollama fills in."""

    user: tuple[str, str]
    """Before and after a request."""
    prompt: str
    """The beginning of an answer."""
    close: str
    """The end of an answer."""
    calls: tuple[str, str, str]
    """Before the first call's name, from its arguments to the second call's name, from there to the turn's end."""
    calls_after_text: str
    """The text between an answer's content and the first call's name."""
    results: tuple[str, str, str]
    """Before, between and after the results of two calls."""


def _frames(render: Render, end: str) -> _Frames:
    """Cut the frames out of one conversation that is rendered as it grows. Raises ValueError, naming the part."""
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": dict(_ARGUMENTS)}} for name in _CALLS
    ]
    user = {"role": "user", "content": _USER}
    parts: list[list[dict[str, Any]]] = [
        [user],
        [{"role": "assistant", "content": _SAID}],
        [user],
        [{"role": "assistant", "content": "", "tool_calls": calls}],
        [{"role": "tool", "content": text, "name": "t", "tool_call_id": "c"} for text in _RESULTS],
        [{"role": "assistant", "content": _SAID, "tool_calls": calls}],
    ]
    so_far = [[message for part in parts[:count] for message in part] for count in range(1, len(parts) + 1)]
    whole = [render(messages, [], False) for messages in so_far]
    answer, request, called, results, spoken = (
        longer.removeprefix(shorter) for shorter, longer in itertools.pairwise(whole)
    )
    prompt = render([user], [], True).removeprefix(whole[0])
    begin, close = _cut(answer, _SAID, "an answer")
    if begin != prompt or not close.startswith(end):
        raise ValueError("an answer")
    before, after = _cut(request, _USER, "a request")
    if not whole[0].endswith(_USER + after):
        raise ValueError("a request")
    if not (called.startswith(prompt) and spoken.startswith(prompt + _SAID)):
        raise ValueError("calls")
    opened, between, closed = _around_calls(called.removeprefix(prompt))
    if not closed.endswith(close) or closed.partition("</tool_call>")[2] != close:
        raise ValueError("an answer with calls")
    tool_open, rest = _cut(results, _RESULTS[0], "results")
    tool_middle, tool_close = _cut(rest, _RESULTS[1], "results")
    return _Frames(
        (before, after),
        prompt,
        close,
        (opened, between, closed.removesuffix(close)),
        _around_calls(spoken.removeprefix(prompt + _SAID))[0],
        (tool_open, tool_middle, tool_close),
    )


def _around_calls(text: str) -> tuple[str, str, str]:
    """Cut a turn of two calls into the texts around names and arguments."""
    arguments = f'", "arguments": {json.dumps(_ARGUMENTS)}'
    before, rest = _cut(text, _CALLS[0] + arguments, "calls")
    between, after = _cut(rest, _CALLS[1] + arguments, "calls")
    if "<tool_call>" not in before or not before.rstrip().endswith('"') or "</tool_call>" not in after:
        raise ValueError("calls")
    return before, between, after


def _heads(render: Render, frames: _Frames) -> str:
    """Write everything before the first turn, with and without a system message and tools."""
    user = [{"role": "user", "content": _USER}]
    system = {"role": "system", "content": _SYSTEM}

    def head(messages: Messages, tools: Sequence[dict[str, Any]]) -> str:
        return _cut(render(messages, tools, False), frames.user[0] + _USER, "a request")[0]

    def with_tools(messages: Messages) -> str:
        one, two = (json.dumps(tool, ensure_ascii=False) for tool in _TOOLS)
        before, rest = _cut(head(messages, _TOOLS), one, "tool schemas")
        between, after = _cut(rest, two, "tool schemas")
        each = '{"type": "function", "function": {{ .Function }}}'
        loop = f"{{{{ range $n, $_ := .Tools }}}}{{{{ if $n }}}}{_go(between)}{{{{ end }}}}{each}{{{{ end }}}}"
        return _with_system(before) + loop + _with_system(after)

    plain, told = head(user, []), head([system, *user], [])
    if _SYSTEM not in told:
        raise ValueError("a system message")
    both, tools = with_tools([system, *user]), with_tools(user)
    return (
        f"{{{{ if .Tools }}}}{{{{ if .System }}}}{both}{{{{ else }}}}{tools}{{{{ end }}}}"
        f"{{{{ else if .System }}}}{_with_system(told)}{{{{ else }}}}{_go(plain)}{{{{ end }}}}"
    )


def _turns(frames: _Frames) -> str:
    """Write the loop over the messages, and the beginning of the answer."""
    prompt = _go(frames.prompt)
    before_user, after_user = map(_go, frames.user)
    first, middle, last = map(_go, frames.calls)
    tool_open, tool_middle, tool_close = map(_go, frames.results)
    function = '{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}'
    calls = (
        f"{{{{ if .ToolCalls }}}}{{{{ if .Content }}}}{_go(frames.calls_after_text)}{{{{ else }}}}{first}{{{{ end }}}}"
        f"{{{{ range $n, $_ := .ToolCalls }}}}{{{{ if $n }}}}{middle}{{{{ else }}}}{{{{ end }}}}{function}{{{{ end }}}}"
        f"{last}{{{{ end }}}}"
    )
    return (
        '{{ $before := "" }}{{ range $i, $_ := .Messages }}{{ $rest := slice $.Messages $i }}'
        '{{ $after := "" }}{{ if gt (len $rest) 1 }}{{ $after = (index $rest 1).Role }}{{ end }}'
        f'{{{{ if eq .Role "user" }}}}{before_user}{{{{ .Content }}}}{after_user}'
        f'{{{{ else if eq .Role "assistant" }}}}{prompt}{{{{ .Content }}}}{calls}'
        f"{{{{ if $after }}}}{_go(frames.close)}{{{{ end }}}}"
        f'{{{{ else if eq .Role "tool" }}}}{{{{ if eq $before "tool" }}}}{tool_middle}'
        f"{{{{ else }}}}{tool_open}{{{{ end }}}}{{{{ .Content }}}}"
        f'{{{{ if ne $after "tool" }}}}{tool_close}{{{{ end }}}}{{{{ end }}}}'
        f'{{{{ $before = .Role }}}}{{{{ end }}}}{{{{ if ne $before "assistant" }}}}{prompt}{{{{ end }}}}'
    )


def _cut(text: str, mark: str, part: str) -> tuple[str, str]:
    """Split a text at a mark. Raises ValueError with the part's name where the mark is missing."""
    before, found, after = text.partition(mark)
    if not found:
        raise ValueError(part)
    return before, after


def _with_system(text: str) -> str:
    return "{{ .System }}".join(map(_go, text.split(_SYSTEM)))


def _go(text: str) -> str:
    """Write a text so that Go's templates print it unchanged."""
    return f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}" if "{{" in text else text


def ollama_name(label: str) -> str:
    """Return a `name:tag` that Ollama accepts, from a label such as calc-tiny@80."""
    name, _, step = label.rsplit("/", 1)[-1].lower().partition("@")
    clean = re.sub(r"[^a-z0-9_.-]+", "-", name).strip("-._") or "model"
    return f"{clean}:{re.sub(r'[^a-z0-9_.-]+', '-', step) or 'latest'}"


def has_ollama() -> bool:
    return shutil.which("ollama") is not None


def ollama_has(name: str) -> bool:
    """Return whether Ollama has a model of this name. Raises ConfigError where it does not answer."""
    listed = _ollama("list")
    return any(line.split()[:1] == [name] for line in listed.splitlines())


def create(name: str, folder: str) -> None:
    """Create the model of `folder` in Ollama. Raises ConfigError with the last line of Ollama's output."""
    _ollama("create", name, "-f", f"{folder}/Modelfile")


def _ollama(*words: str) -> str:
    try:
        done = subprocess.run(["ollama", *words], capture_output=True, text=True, timeout=3600)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"Ollama does not answer: {error}.") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        raise ConfigError(f"`ollama {words[0]}` failed: {said[0][:300].rstrip('.')}.")
    return done.stdout
