"""The main job with vLLM as its engine, and both parsers of tool calls compared."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from mcp_rl.backends.samplers.policies import LocalPolicies
from mcp_rl.config import TINY
from mcp_rl.inference.chat.calls import ParsedCompletion
from mcp_rl.inference.chat.dialects.hermes import parse_completion
from mcp_rl.inference.engine import Sampling
from mcp_rl.scenario import StdioServer
from mcp_rl.tiny import weights_path
from mcp_rl.toolserver.pool import Sessions

STEPS = 3
SERVERS = (
    StdioServer(command="{python}", args=("{bundled}/servers/python/mcp_calculator/server.py", "--transport", "stdio")),
    StdioServer(command="node", args=("{bundled}/servers/node/mcp_notes/mcp_notes.mjs", "--transport", "stdio")),
)
REQUESTS = (
    "Add 12 and 30.",
    "What is 7 times 8, divided by 4?",
    'Write "milk & <eggs>" into the note "shopping list", then read it.',
    "Which notes are there? Delete the oldest one.",
    "Take the square root of 2 to the power of 10.",
    "Hello!",
)


READ = """
import json, sys
from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
request = ChatCompletionRequest(model="any", messages=[{"role": "user", "content": "?"}])
read = []
for text in json.load(sys.stdin):
    found = Hermes2ProToolParser(tokenizer).extract_tool_calls(text, request)
    calls = [(call.function.name, call.function.arguments) for call in found.tool_calls]
    read.append({"calls": calls, "content": found.content or ""})
print(json.dumps(read))
"""


@pytest.fixture(scope="module")
def trained(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Run a short main job and kill vLLM in its second step; return the run's folder and the output."""
    folder = tmp_path_factory.mktemp("job")
    command = [sys.executable, "-m", "mcp_rl", "train", "--server", "mcp_calculator", "--engine", "vllm"]
    command += ["--name", "job", "--steps", str(STEPS), f"engine.python={vllm_python}", "evaluation.samples=1"]
    command += ["train.sft_steps=0"]
    command += ["train.offload_while_sampling=host"]  # the learner leaves its memory while vLLM samples
    command += ["scenarios.count=240", "scenarios.val=48", "rollout.groups_per_step=12"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    ) as job:
        assert job.stdout is not None
        said = ""
        for line in job.stdout:
            said += line
            if line.startswith("step 1/"):
                os.kill(_vllm_of(job.pid), signal.SIGKILL)
    assert job.returncode == 0, said[-3000:]
    yield folder / ".mcp_rl" / "default" / "models" / "job", said


def _vllm_of(pid: int) -> int:
    """Return the process id of the server that a command started."""
    (server,) = [child.pid for child in psutil.Process(pid).children(recursive=True) if _is_vllm(child)]
    return server


def _is_vllm(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return words[1:2] == ["-m"] and words[2].startswith("vllm.")  # not the watchdog that started it


def test_the_main_job_learns_although_vllm_is_killed(
    trained: tuple[Path, str],
) -> None:
    run, said = trained
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    steps = [line for line in history if line["split"] == "train"]
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert all(line["faults"] == 0 for line in steps)
    before, after = (line["greedy_success"] for line in history if line["split"] == "val")
    assert after > before + 0.15
    for line in steps:
        assert line["logprob_difference_mean"] < 1e-4
        assert abs(line["ratio_mean"] - 1) < 1e-4
        assert line["to_host_seconds"] > 0 and line["to_device_seconds"] > 0
        assert 0 < line["cached_tokens"] < line["prompt_tokens"]
    assert "vLLM's server died and is being restarted" in said
    assert not (run / "adapters").exists()
    assert not any(_is_vllm(process) and str(run) in " ".join(_logs(process)) for process in psutil.process_iter())


def _logs(process: psutil.Process) -> list[str]:
    try:
        return [file.path for file in process.open_files()]
    except psutil.Error:
        return []


async def test_vllm_parses_a_thousand_tool_calls_alike(vllm_python: Path, trained: tuple[Path, str]) -> None:
    texts = await _sampled(1000, trained[0] / "checkpoints" / f"{STEPS:04d}")
    read = await anyio.to_thread.run_sync(_read_by_vllm, vllm_python, texts)
    unexplained = []
    same = 0
    reasons: dict[str, int] = {}
    for text, theirs in zip(texts, read, strict=True):
        ours = parse_completion(text)
        if _calls(ours) == theirs["calls"] and ours.content == theirs["content"].strip():
            same += 1
        elif (reason := _reason(text, ours, theirs)) is None:
            unexplained.append((text, ours, theirs))
        else:
            reasons[reason] = reasons.get(reason, 0) + 1
    print(f"{same} of {len(texts)} read the same; {reasons}")
    assert unexplained == []
    assert len(texts) == 1000
    assert sum(bool(parse_completion(text).calls) for text in texts) > 400
    assert same > 600


async def _sampled(count: int, checkpoint: Path) -> list[str]:
    """Sample first turns and turns after a result from the base and the trained policy, some at temperatures high
    enough to be malformed."""
    found: list[str] = []
    async with Sessions() as sessions, LocalPolicies(TINY) as policies:
        schemas = [(await sessions.get(server)).schemas.openai for server in SERVERS]
        for version, adapter in ((0, None), (1, checkpoint)):
            await policies.use(adapter, version)

            async def play(seed: int) -> None:
                draw = random.Random(seed)
                chat, tools, request = policies.chat, draw.choice(schemas), draw.choice(REQUESTS)
                sampling = Sampling(temperature=draw.choice((0.7, 1.0, 1.0, 1.4)), max_tokens=96)
                new = chat.initial([{"role": "user", "content": request}], tools)
                async with policies.engine.episode(seed=seed) as episode:
                    for _ in range(2):
                        ids = (await episode.generate(new, sampling)).token_ids
                        found.append(chat.decode(ids))
                        if ids[-1] not in chat.stop_token_ids:
                            return
                        new = chat.continuation([{"role": "tool", "content": str(draw.randrange(100))}])

            enough = count // 2 * (version + 1)
            for first in range(0, 100_000, 100):
                if len(found) >= enough:
                    break
                async with anyio.create_task_group() as tasks:
                    for seed in range(first, first + 100):
                        tasks.start_soon(play, 100_000 * version + seed)
            del found[enough:]
    return found


def _read_by_vllm(python: Path, texts: list[str]) -> list[dict[str, Any]]:
    """Parse these turns with vLLM's parser as its chat endpoint does."""
    done = subprocess.run(
        [python, "-c", READ, str(weights_path())],
        input=json.dumps(texts),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    read: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    for turn in read:
        turn["calls"] = [(name, json.loads(arguments)) for name, arguments in turn["calls"]]
    return read


def _calls(ours: ParsedCompletion) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in ours.calls]


def _reason(text: str, ours: ParsedCompletion, theirs: dict[str, Any]) -> str | None:
    """Return a known reason for vLLM's parser to differ from ours; None if there is none."""
    if any(call.error for call in ours.calls) and not theirs["calls"]:
        return "malformed: vLLM takes the turn for text, a model of ours is told what is wrong with its call"
    if _calls(ours) == theirs["calls"] and theirs["content"].strip() == text.partition("<tool_call>")[0].strip():
        return "text after a call: vLLM drops it, we keep it"
    if '"arguments"' not in text and not theirs["calls"] and all(call.arguments == {} for call in ours.calls):
        return "no arguments: vLLM takes the turn for text, for us they are empty"
    strings = [json.loads(a) if isinstance(a, str) else a for _, a in theirs["calls"]]
    if [call.arguments for call in ours.calls] == strings:
        return "arguments that were encoded twice: we decode them"
    return None
