"""A Modelfile for Ollama: the model's own chat template in the language that Ollama has for it, Go's text/template.

A jinja template cannot be translated in general. Its text is cut out of renderings of conversations with marks in
them, as the token-exact continuation is, and put around what Ollama fills in; where a template writes something else
than system, tools, turns, Hermes calls and results, that is said in one sentence.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from mcp_rl.errors import ConfigError

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
    """The whole file. `weights` is what FROM names, `ends` the tokens that end a turn besides the tokenizer's own.
    Raises ConfigError where the chat template is not Hermes'."""

    def render(messages: Messages, tools: Sequence[dict[str, Any]], prompt: bool) -> str:
        text = tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=prompt
        )
        return str(text)

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
    """The chat template as Go's. `end` ends a turn. Raises ConfigError where it cannot be cut."""
    try:
        pieces = _heads(render) + _turns(render, end)
    except ValueError as error:
        raise ConfigError(
            f"The chat template cannot be written for Ollama, as it does not write {error} the way Hermes does; export "
            "it as merged or gguf."
        ) from error
    if '"""' in pieces:
        raise ConfigError('The chat template cannot be written for Ollama, as it holds """; export it as gguf.')
    return pieces


def _heads(render: Render) -> str:
    """All before the first turn, with and without a system message and tools."""
    user = [{"role": "user", "content": _USER}]
    system = {"role": "system", "content": _SYSTEM}
    opening = _user_turn(render)[0]

    def head(messages: Messages, tools: Sequence[dict[str, Any]]) -> str:
        return _before(render(messages, tools, False), opening + _USER, "a request")

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


def _turns(render: Render, end: str) -> str:
    """The loop over the messages, and the beginning of the answer."""
    user = {"role": "user", "content": _USER}
    said = {"role": "assistant", "content": _SAID}
    before_user, after_user = _user_turn(render)
    opening = render([user], [], False)
    prompt = render([user], [], True).removeprefix(opening)
    answer = render([user, said], [], False).removeprefix(opening)
    begin, close = _cut(answer, _SAID, "an answer")
    if begin != prompt or not close.startswith(end):
        raise ValueError("an answer")
    first, middle, last = _calls(render, opening, prompt, "")
    after_text = _calls(render, opening, prompt, _SAID)[0].removeprefix(_SAID)
    if last != close:
        raise ValueError("an answer with calls")
    tool_open, tool_middle, tool_close = _results(render)
    function = '{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}'
    choose = f"{{{{ if $n }}}}{_go(middle)}{{{{ else }}}}"
    calls = (
        f"{{{{ if .ToolCalls }}}}{{{{ if .Content }}}}{_go(after_text)}{{{{ else }}}}{_go(first)}{{{{ end }}}}"
        f"{{{{ range $n, $_ := .ToolCalls }}}}{choose}{{{{ end }}}}{function}{{{{ end }}}}"
        f"{_go(_end_of_calls(render, opening, prompt, close))}{{{{ end }}}}"
    )
    return (
        '{{ $before := "" }}{{ range $i, $_ := .Messages }}{{ $rest := slice $.Messages $i }}'
        '{{ $after := "" }}{{ if gt (len $rest) 1 }}{{ $after = (index $rest 1).Role }}{{ end }}'
        f'{{{{ if eq .Role "user" }}}}{_go(before_user)}{{{{ .Content }}}}{_go(after_user)}'
        f'{{{{ else if eq .Role "assistant" }}}}{_go(prompt)}{{{{ .Content }}}}{calls}'
        f"{{{{ if $after }}}}{_go(close)}{{{{ end }}}}"
        f'{{{{ else if eq .Role "tool" }}}}{{{{ if eq $before "tool" }}}}{_go(tool_middle)}'
        f"{{{{ else }}}}{_go(tool_open)}{{{{ end }}}}{{{{ .Content }}}}"
        f'{{{{ if ne $after "tool" }}}}{_go(tool_close)}{{{{ end }}}}{{{{ end }}}}'
        f'{{{{ $before = .Role }}}}{{{{ end }}}}{{{{ if ne $before "assistant" }}}}{_go(prompt)}{{{{ end }}}}'
    )


def _user_turn(render: Render) -> tuple[str, str]:
    """What is around a request: the second of two shows it without what stands at the beginning."""
    turns = [{"role": "user", "content": _USER}, {"role": "assistant", "content": _SAID}]
    twice = render([*turns, {"role": "user", "content": _RESULTS[0]}], [], False)
    alone = render(turns[:1], [], False)
    _, after = _cut(alone, _USER, "a request")
    rest = twice.removeprefix(render(turns, [], False))
    before, closing = _cut(rest, _RESULTS[0], "a request")
    if closing != after:
        raise ValueError("a request")
    return before, after


def _calls(render: Render, opening: str, prompt: str, content: str) -> tuple[str, str, str]:
    """Before the first call's name, between the first one's arguments and the second's name, and what ends the turn."""
    text = _answer_with_calls(render, opening, prompt, content)
    first, rest = _cut(text, _CALLS[0], "calls")
    arguments = f'", "arguments": {json.dumps(_ARGUMENTS)}'
    middle, rest = _cut(rest.removeprefix(arguments), _CALLS[1], "calls")
    if not first.rstrip().endswith('"') or "<tool_call>" not in first or rest == rest.removeprefix(arguments):
        raise ValueError("calls")
    _, tag, last = rest.removeprefix(arguments).partition("</tool_call>")
    if not tag:
        raise ValueError("calls")
    return first, middle, last


def _end_of_calls(render: Render, opening: str, prompt: str, close: str) -> str:
    """Between the last call's arguments and the end of the turn."""
    text = _answer_with_calls(render, opening, prompt, "")
    return text.rpartition(json.dumps(_ARGUMENTS))[2].removesuffix(close)


def _answer_with_calls(render: Render, opening: str, prompt: str, content: str) -> str:
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": dict(_ARGUMENTS)}} for name in _CALLS
    ]
    turn = {"role": "assistant", "content": content, "tool_calls": calls}
    answer = render([{"role": "user", "content": _USER}, turn], [], False).removeprefix(opening)
    if not answer.startswith(prompt):
        raise ValueError("calls")
    return answer.removeprefix(prompt)


def _results(render: Render) -> tuple[str, str, str]:
    """Before, between and after two tools' results."""
    turns: list[dict[str, Any]] = [{"role": "user", "content": _USER}, {"role": "assistant", "content": _SAID}]
    results = [{"role": "tool", "content": text, "name": "t", "tool_call_id": "c"} for text in _RESULTS]
    text = render([*turns, *results], [], False).removeprefix(render(turns, [], False))
    before, rest = _cut(text, _RESULTS[0], "results")
    between, after = _cut(rest, _RESULTS[1], "results")
    return before, between, after


def _cut(text: str, mark: str, what: str) -> tuple[str, str]:
    before, found, after = text.partition(mark)
    if not found:
        raise ValueError(what)
    return before, after


def _before(text: str, mark: str, what: str) -> str:
    return _cut(text, mark, what)[0]


def _with_system(text: str) -> str:
    return "{{ .System }}".join(map(_go, text.split(_SYSTEM)))


def _go(text: str) -> str:
    """Text that Go's templates write as it is."""
    return f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}" if "{{" in text else text


def ollama_name(label: str) -> str:
    """`name:tag` that Ollama accepts, from a label such as calc-tiny@80."""
    name, _, step = label.rsplit("/", 1)[-1].lower().partition("@")
    clean = re.sub(r"[^a-z0-9_.-]+", "-", name).strip("-._") or "model"
    return f"{clean}:{re.sub(r'[^a-z0-9_.-]+', '-', step) or 'latest'}"


def has_ollama() -> bool:
    return shutil.which("ollama") is not None


def ollama_has(name: str) -> bool:
    """Whether Ollama has a model of this name. Raises ConfigError where it does not answer."""
    listed = _ollama("list")
    return any(line.split()[:1] == [name] for line in listed.splitlines())


def create(name: str, folder: str) -> None:
    """Give the model in `folder` to Ollama. Raises ConfigError with its last word."""
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
