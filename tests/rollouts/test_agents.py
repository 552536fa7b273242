"""Episodes that an agent program drives: real programs, asking over HTTP, each with its key."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import psutil
import pytest
import pytest_asyncio
from transformers import AutoTokenizer

from mcp_rl.backends.samplers.policies import LocalPolicies
from mcp_rl.config import JudgeConfig, RewardConfig
from mcp_rl.errors import EngineError
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.scripted import ScriptedEngine
from mcp_rl.rewards.program import program as program_reward
from mcp_rl.rewards.scoring import Scoring
from mcp_rl.rewards.verifier import BUILT_IN, verify
from mcp_rl.rollouts.agents.player import AgentOptions, opened_player
from mcp_rl.rollouts.player import SettingPlayer
from mcp_rl.rollouts.speaker import Limits
from mcp_rl.runs.steps.demonstrations import opened_demonstrator
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier
from mcp_rl.system.tasks import run_all
from mcp_rl.tiny import weights_path
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.trajectory import StopReason, Trajectory
from tests.docs.examples import examples

CALCULATOR = StdioServer(
    command="{python}", args=("{bundled}/servers/python/mcp_calculator/server.py", "--transport", "stdio")
)
ASK = """
import json, os, sys, urllib.request
def post(path, body, key=os.environ["OPENAI_API_KEY"]):
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))
def ask(*texts, **more):
    messages = [{"role": "user", "content": text} if isinstance(text, str) else text for text in texts]
    body = {"model": "any", "messages": messages, **more}
    return post("/chat/completions", body)["choices"][0]["message"]
task = os.environ["MCP_RL_TASK"]
"""
"""The beginning of a program that needs no package."""


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(AutoTokenizer.from_pretrained(weights_path()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sessions() -> AsyncIterator[Sessions]:
    async with Sessions() as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def policies() -> AsyncIterator[LocalPolicies]:
    async with LocalPolicies("mcp-rl/tiny", gang=False, max_context=1024) as opened:
        yield opened


pytestmark = pytest.mark.asyncio(loop_scope="module")


def task(text: str = "What is 6 times 7?", expected: float = 42, **options: Any) -> McpScenario:
    verifier = Verifier(kind="number", expected=expected, options={"require_tool": False} | options)
    return McpScenario(task_description=text, server_params=CALCULATOR, max_turns=4, verifier=verifier)


@asynccontextmanager
async def playing(
    tmp_path: Path, engine: Any, chat: ChatFormat, sessions: Sessions, agent: str | None, **options: Any
) -> AsyncIterator[tuple[SettingPlayer, list[str]]]:
    said: list[str] = []
    opened = agent and AgentOptions(agent, tmp_path / "logs", said.append, rewards=options.pop("rewards", False))
    options = {
        "limits": Limits(max_turn_tokens=80, max_tokens=384, seconds=300),
        "finish": lambda scenario, trajectory: verify(trajectory, scenario),
    } | options
    async with opened_player(opened or None, engine, chat, sessions, **options) as player:
        yield player, said


def program(tmp_path: Path, code: str) -> str:
    file = tmp_path / "program.py"
    file.write_text(ASK + code)
    return f"{sys.executable} -I -S {file}"


async def played(
    tmp_path: Path, chat: ChatFormat, sessions: Sessions, code: str, reply: Any = "It is 42.", **limits: Any
) -> Trajectory:
    """Play one episode of a small program with a scripted model."""
    engine = ScriptedEngine(reply if callable(reply) else lambda text, seed, turn: reply, chat)
    asked = {"limits": Limits(**{"seconds": 300} | limits)}
    async with playing(tmp_path, engine, chat, sessions, program(tmp_path, code), **asked) as (player, _):
        return await player.play(task(), 1)


SAYING_THE_SAME = {
    "docs": {"model"},
    "calculator_agent.py": {"temperature", "top_p", "model"},
    "protocols_agent.py responses": {"model"},
    "protocols_agent.py continued": {"model"},
    "protocols_agent.py messages": {"model"},
}
"""Programs, and what is said of their requests, once for all episodes."""


@pytest.mark.parametrize("way", SAYING_THE_SAME)
async def test_a_program_that_says_what_our_loop_says(
    tmp_path: Path, policies: LocalPolicies, sessions: Sessions, way: str
) -> None:
    """It gets the same episode, token by token."""
    program = str(Path(__file__).with_name(way))
    if way == "docs":
        example, *_ = [one for one in examples() if one.page == "docs/agents.md" and one.kind == "python"]
        program = str(tmp_path / "my_agent.py")
        await anyio.Path(program).write_text(example.text)
    agent = f"{sys.executable} {program}"
    found: dict[str | None, list[Trajectory]] = {}
    for driver in (None, agent):
        async with playing(tmp_path, policies.engine, policies.chat, sessions, driver) as (player, said):
            scenario, results = task("Add 31 and 4.", 35, require_tool=True), {}

            async def one(seed: int, player: Any = player, scenario: Any = scenario, results: Any = results) -> None:
                results[seed] = await player.play(scenario, seed)

            await run_all([lambda seed=seed: one(seed) for seed in (7, 8)])
        found[driver] = [results[seed] for seed in sorted(results)]
    noted = SAYING_THE_SAME[way]
    assert len(said) == len(noted) and all(any(name in sentence for sentence in said) for name in noted)
    for ours, theirs in zip(found[None], found[agent], strict=True):
        assert theirs.segments == ours.segments
        assert (theirs.final_answer, theirs.reward, theirs.turns) == (ours.final_answer, ours.reward, ours.turns)
        assert [(c.turn, c.tool, c.arguments, c.result) for c in theirs.calls] == [
            (c.turn, c.tool, c.arguments, c.result) for c in ours.calls
        ]
        assert [m["role"] for m in theirs.messages] == [m["role"] for m in ours.messages]
    assert any(trajectory.reward for trajectory in found[agent])


async def test_an_edited_history_begins_a_segment_and_no_token_is_trained_twice(
    tmp_path: Path, policies: LocalPolicies, sessions: Sessions
) -> None:
    code = """
first = ask(task)
second = ask(task, first, "And now?")
ask("Another conversation.")
ask(task + " Please.", first, "And now?")
ask(task, first, "And now?", second, "And then?")
"""
    limits = Limits(max_turn_tokens=12, max_turns=5, seconds=300)
    scenario = task().model_copy(update={"max_turns": 5})
    command = program(tmp_path, code)
    async with playing(tmp_path, policies.engine, policies.chat, sessions, command, limits=limits) as (player, _):
        trajectory = await player.play(scenario, 3)
    assert trajectory.turns == 5, trajectory.fault
    runs = [len("".join("x" if s else " " for s in segment.sampled).split()) for segment in trajectory.segments]
    assert sum(runs) == 5 and len(trajectory.segments) >= 3  # each turn in one place
    texts = [policies.chat.tokenizer.decode(segment.tokens) for segment in trajectory.segments]
    assert sum("And then?" in text for text in texts) == 1
    assert "Please." in texts[-1] or "Please." in texts[-2]


async def test_64_programs_at_once_each_with_its_key_never_mix(
    tmp_path: Path, chat: ChatFormat, sessions: Sessions
) -> None:
    code = """
said = ask(task)
again = ask(task, said, "Once more.")
assert said["content"].split()[-1] == again["content"].split()[-1] == task.split()[-1], (said, again, task)
try:
    post("/chat/completions", {}, "sk-episode-guessed")
except urllib.error.HTTPError as error:
    assert error.code == 401 and "API key" in error.read().decode()
print(os.environ["OPENAI_API_KEY"][-1:] and "The number is " + again["content"].split()[-1])
"""

    def reply(text: str, seed: int, turn: int) -> str:
        return "You said " + text.split("number ")[1].split("<")[0]

    engine, results = ScriptedEngine(reply, chat), {}
    async with playing(tmp_path, engine, chat, sessions, program(tmp_path, code)) as (player, _):
        player._in_flight = anyio.Semaphore(64)

        async def one(number: int) -> None:
            results[number] = await player.play(task(f"Repeat the number {number}", number), number)

        await run_all([lambda number=number: one(number) for number in range(64)])
    assert [results[number].fault for number in range(64)] == [None] * 64
    assert all(results[number].reward == 1.0 and len(results[number].segments) == 1 for number in range(64))
    assert all(str(number) in chat.tokenizer.decode(results[number].segments[0].tokens) for number in range(64))


RULES = [
    ("print('42')", StopReason.FAULT, "ended without asking the model"),
    ("sys.exit('no such thing')", StopReason.FAULT, "exited with status 1: no such thing"),
    ("ask(task); sys.exit(75)", StopReason.FAULT, "exited with status 75"),
    ("ask(task); os.kill(os.getpid(), 9)", StopReason.FAULT, "was killed by SIGKILL"),
    ("ask(task); raise ValueError('odd words')", StopReason.PROGRAM_FAILED, None),
    ("ask(task); print('41'); print(); print('It is 42')", StopReason.ANSWERED, None),
    ("ask(task)", StopReason.ANSWERED, None),
    ("while True: ask(task)", StopReason.MAX_TURNS, None),
    ("child = os.fork(); ask(task if child else 'Else?'); child or os._exit(0); os.wait()", StopReason.ANSWERED, None),
    ("ask(task)\nwhile os.fork(): ask(task)", StopReason.MAX_TURNS, None),
    (
        "import subprocess; second = sys.argv[1:]; ask(task)\n"
        "second or subprocess.run([sys.executable, '-I', '-S', *sys.argv, 'second'], check=True); print(42)",
        StopReason.ANSWERED,
        None,
    ),  # two programs with one key
]


@pytest.mark.parametrize(("code", "stop", "fault"), RULES, ids=[code for code, _, _ in RULES])
async def test_how_a_program_ends_decides_fault_or_score(
    tmp_path: Path, chat: ChatFormat, sessions: Sessions, code: str, stop: StopReason, fault: str | None
) -> None:
    trajectory = await played(tmp_path, chat, sessions, code)
    assert trajectory.stop_reason is stop, trajectory.fault
    if fault is not None:
        assert fault in (trajectory.fault or "") and trajectory.reward is None
    else:
        assert trajectory.reward == float(stop is StopReason.ANSWERED)


async def test_a_program_that_hangs_and_forks_is_timed_out_and_nothing_is_left(
    tmp_path: Path, chat: ChatFormat, sessions: Sessions
) -> None:
    code = f"""
import time
ask(task)
for _ in range(3):
    if not os.fork():
        os.setsid()
        open(os.path.join({str(tmp_path)!r}, f"pid-{{os.getpid()}}"), "w").close()
        time.sleep(600)
time.sleep(600)
"""
    trajectory = await played(tmp_path, chat, sessions, code, seconds=25)
    assert trajectory.stop_reason is StopReason.TIMEOUT and trajectory.reward is None
    children = process_ids(tmp_path)
    assert len(children) == 3 and not any(map(psutil.pid_exists, children))


def process_ids(folder: Path) -> list[int]:
    return [int(file.name.removeprefix("pid-")) for file in folder.glob("pid-*")]


async def test_a_forked_child_that_outlives_the_program_is_ended_with_it(
    tmp_path: Path, chat: ChatFormat, sessions: Sessions
) -> None:
    code = "import time\nask(task)\nif not os.fork(): os.setsid(); time.sleep(600)\nprint(42)"
    with anyio.fail_after(200):
        trajectory = await played(tmp_path, chat, sessions, code)
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.ANSWERED, 1.0)


async def test_a_turn_at_its_limit_is_no_answer(tmp_path: Path, chat: ChatFormat, sessions: Sessions) -> None:
    trajectory = await played(tmp_path, chat, sessions, "print(ask(task)['content'])", "42 " * 50, max_turn_tokens=8)
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.MAX_TURN_TOKENS, 0.0)
    assert trajectory.sampled_tokens == 8
    own = "print(ask(task, max_tokens=3)['content'])"  # the program's own limit is its own affair
    assert (await played(tmp_path, chat, sessions, own, "42 " * 50)).stop_reason is StopReason.ANSWERED


async def test_a_failing_engine_is_a_fault_whatever_the_program_makes_of_it(
    tmp_path: Path, chat: ChatFormat, sessions: Sessions
) -> None:
    def reply(text: str, seed: int, turn: int) -> str:
        raise EngineError("The engine is gone.")

    code = "try: ask(task)\nexcept Exception: print(42)"
    trajectory = await played(tmp_path, chat, sessions, code, reply)
    assert (trajectory.stop_reason, trajectory.fault) == (StopReason.FAULT, "The engine is gone.")


async def test_the_calls_of_a_programs_own_tools_are_seen_by_verifiers(
    tmp_path: Path, chat: ChatFormat, sessions: Sessions
) -> None:
    code = """
tools = [{"type": "function", "function": {"name": "times", "parameters": {"type": "object"}}}]
said = ask(task, tools=tools)
[call] = said["tool_calls"]
result = {"role": "tool", "tool_call_id": call["id"], "content": "42"}
print(ask(task, said, result, tools=tools)["content"])
"""
    calls = ['<tool_call>\n{"name": "times", "arguments": {"a": 6, "b": 7}}\n</tool_call>', "It is 42."]
    trajectory = await played(tmp_path, chat, sessions, code, lambda text, seed, turn: calls[turn])
    [record] = trajectory.calls
    assert (record.turn, record.tool, record.arguments, record.result) == (0, "times", {"a": 6, "b": 7}, "42")
    assert [message["role"] for message in trajectory.messages] == ["user", "assistant", "tool", "assistant"]
    assert len(trajectory.segments) == 1


async def test_fields_that_cannot_be_honoured_are_noted_and_the_key_ends_with_its_episode(
    tmp_path: Path, chat: ChatFormat, sessions: Sessions
) -> None:
    code = f"""
print(ask(task, temperature=0, seed=1, top_k=5, made_up=[1], response_format={{"type": "json_object"}})["content"])
open({str(tmp_path / "address")!r}, "w").write(os.environ["OPENAI_BASE_URL"] + " " + os.environ["OPENAI_API_KEY"])
"""
    engine = ScriptedEngine(lambda text, seed, turn: "42", chat)
    async with playing(tmp_path, engine, chat, sessions, program(tmp_path, code)) as (player, said):
        trajectory = await player.play(task(), 1)
        url, key = (tmp_path / "address").read_text().split()
        async with httpx.AsyncClient() as client:
            answered = await client.get(f"{url}/models", headers={"Authorization": f"Bearer {key}"})
            tools = await client.post(url.replace("/v1", f"/mcp/{key}"), json={})
    assert trajectory.reward == 1.0, trajectory.fault
    assert (answered.status_code, tools.status_code) == (401, 401)
    for field in ("temperature", "seed", "top_k", "made_up", "response_format", "model"):
        assert sum(field in sentence for sentence in said) == 1, (field, said)


GIVE = """
def give(reward):
    return post("/reward", {"reward": reward})
def refused(reward):
    try:
        give(reward)
    except urllib.error.HTTPError as error:
        return error.code
def write(text):
    with open(os.environ["MCP_RL_REWARD_FILE"], "w") as file:
        file.write(text)
ask(task)
"""
REWARDS = [
    ("write('0.25')", 0.25, None),
    ("assert give(0.75) == {'reward': 0.75}", 0.75, None),
    (
        "assert [refused(x) for x in (float('nan'), float('inf'), 2, -1, True, '1', None)] == [400] * 7; give(1)",
        1.0,
        None,
    ),
    ("give(0.5); assert refused(1) == 409", 0.5, None),
    ("write('1'); write('0.5')", 0.5, None),
    ("write('nan')", None, "wrote 'nan' as its reward"),
    ("write('1e999')", None, "wrote '1e999' as its reward"),
    ("os.mkfifo(os.environ['MCP_RL_REWARD_FILE'])", None, "wrote 'no plain file' as its reward"),
    ("give(1); write('1')", None, "gave two rewards"),
    ("", None, "ended without a reward"),
]


@pytest.mark.parametrize(("code", "reward", "fault"), REWARDS, ids=[code for code, _, _ in REWARDS])
async def test_a_reward_that_the_program_gives(
    tmp_path: Path, chat: ChatFormat, sessions: Sessions, code: str, reward: float | None, fault: str | None
) -> None:
    scoring = Scoring(JudgeConfig(), BUILT_IN, RewardConfig(weights={"program": 1.0}), {"program": program_reward})
    finish = scoring.rollout
    engine = ScriptedEngine(lambda text, seed, turn: "It is 41.", chat)
    options: dict[str, Any] = {"rewards": True, "finish": finish}
    async with playing(tmp_path, engine, chat, sessions, program(tmp_path, GIVE + code), **options) as (player, _):
        trajectory = await player.play(task(), 1)
    assert trajectory.reward == reward, trajectory.fault
    assert (fault or "") in (trajectory.fault or "") and bool(fault) == bool(trajectory.fault)
    assert trajectory.success is (None if fault else False)  # as the verifier says, which is not asked for the reward


async def test_a_reward_that_does_not_count_is_said(tmp_path: Path, chat: ChatFormat, sessions: Sessions) -> None:
    engine = ScriptedEngine(lambda text, seed, turn: "It is 42.", chat)
    async with playing(tmp_path, engine, chat, sessions, program(tmp_path, GIVE + "give(0)")) as (player, said):
        trajectory = await player.play(task(), 1)
    assert trajectory.reward == 1.0
    assert sum("reward.weights={program=1}" in sentence for sentence in said) == 1


FUNCTION = """
import atexit, contextlib, functools, json, os, time, urllib.request
print("Imported.")
def ask(task):
    headers = {"Authorization": f"Bearer {task.api_key}", "Content-Type": "application/json"}
    body = {"model": task.model, "messages": [{"role": "user", "content": task.task}]}
    request = urllib.request.Request(task.base_url + "/chat/completions", json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
async def play(task):
    print("Not the answer.")
    return "The first line\\n" + ask(task)
def silent(task): ask(task)
def number(task): return len(ask(task))
async def fails(task): ask(task); raise ValueError("odd")
async def hangs(task): ask(task); time.sleep(600)
def long(task): ask(task); return "\U0001f600" * 50_000
def stray(task):
    ask(task)
    def write():
        for number in range(3, 64):
            with contextlib.suppress(OSError): os.write(number, b"stray\\n")
    atexit.register(write)
bound = functools.partial(ask)
"""


@pytest.mark.parametrize(
    ("name", "stop", "answer"),
    [
        ("play", StopReason.ANSWERED, "The first line\nIt is 42."),
        ("silent", StopReason.ANSWERED, "It is 42."),
        ("number", StopReason.ANSWERED, "9"),
        ("fails", StopReason.PROGRAM_FAILED, None),
        ("hangs", StopReason.TIMEOUT, None),
        ("long", StopReason.PROGRAM_FAILED, None),
        ("stray", StopReason.FAULT, None),
        ("bound", StopReason.ANSWERED, "It is 42."),
    ],
)
async def test_a_function_plays_as_a_program_does(
    tmp_path: Path, chat: ChatFormat, sessions: Sessions, name: str, stop: StopReason, answer: str | None
) -> None:
    (tmp_path / "my_agent.py").write_text(FUNCTION.replace("\\\\", "\\"))
    engine = ScriptedEngine(lambda text, seed, turn: "It is 42.", chat)
    limits = Limits(seconds=20 if name == "hangs" else 300)
    agent = f"{tmp_path}/my_agent.py:{name}"
    async with playing(tmp_path, engine, chat, sessions, agent, limits=limits) as (player, _):
        trajectory = await player.play(task(), 1)
    assert (trajectory.stop_reason, trajectory.submission) == (stop, answer), trajectory.fault


SOLVED = task("Add 31 and 4.", 35, require_tool=True).model_copy(
    update={"reference": (ToolCall(tool="add", arguments={"a": 31, "b": 4}),)}
)


async def test_a_reference_solution_through_a_program_has_the_tokens_of_our_loop(
    tmp_path: Path, policies: LocalPolicies, sessions: Sessions
) -> None:
    """So a policy that imitates it learns what the program will show it."""
    agent = AgentOptions(f"{sys.executable} {Path(__file__).with_name('calculator_agent.py')}", tmp_path, print)
    found = []
    for driver in (None, agent):
        opening = opened_demonstrator(
            driver,
            policies.engine,
            policies.chat,
            sessions,
            finish=lambda scenario, trajectory: verify(trajectory, scenario),
        )
        async with opening as player:
            found.append(await player.play(SOLVED, 1))
    ours, theirs = found
    assert theirs.segments == ours.segments
    assert ours.success
    assert theirs.success


INSISTS = """
own = {"type": "function", "function": {"name": "final_answer", "parameters": {
    "type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}}}
add = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}}}
history = [task]
while True:
    call = ask(*history, tools=[add, own], tool_choice="required", stop=["Observation:"])["tool_calls"][0]["function"]
    arguments = json.loads(call["arguments"])
    if call["name"] == "final_answer":
        print(arguments["answer"])
        break
    seen = arguments["a"] + arguments["b"]
    history.append(f"Calling tools: {call['name']} {call['arguments']}. Observation: {seen}")
"""
"""A program in the manner of smolagents: calls and results are text, and the answer is a call of its own tool."""


async def test_a_program_that_insists_on_calls_gets_the_answer_by_its_own_tool(
    tmp_path: Path, chat: ChatFormat, sessions: Sessions
) -> None:
    said: list[str] = []
    engine = ScriptedEngine(lambda text, seed, turn: "never asked", chat)
    found = []
    for code in (INSISTS, INSISTS.replace("[add, own]", "[own]")):
        agent = AgentOptions(program(tmp_path, code), tmp_path / "logs", said.append)
        async with opened_demonstrator(agent, engine, chat, sessions) as player:
            found.append(await player.play(SOLVED, 1))
    solved, other = found
    assert (solved.final_answer, solved.fault, len(solved.segments)) == ("35", None, 2)
    assert "does not offer the tool 'add' of the reference solution" in str(other.fault)
