"""The command `mcp-rl serve`."""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from mcp_rl.cli import main
from mcp_rl.inference.openai_api.running import bind

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: Captured, *words: str) -> str:
    assert main(["serve", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def test_impossible_commands_are_one_sentence(here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Name a model to serve" in refused(capsys)
    assert "did you mean 'mcp-rl/tiny'" in refused(capsys, "mcp-rl-tiny")
    assert "scripted:reference has no weights" in refused(capsys, "scripted:reference")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert "openai/gpt-4.1 has no weights" in refused(capsys, "litellm:openai/gpt-4.1", "--port", "0")
    assert "both be called 'mcp-rl/tiny'" in refused(capsys, "mcp-rl/tiny", "mcp-rl/tiny")
    assert "did you mean" in refused(capsys, "mcp-rl/tiny", "engine.max_contxt=100")
    assert "settings of engine only" in refused(capsys, "mcp-rl/tiny", "train.steps=3")
    url = ("--engine-url", "http://127.0.0.1:9/v1")
    assert "leave one of them out" in refused(capsys, "mcp-rl/tiny", "--engine", "local", *url)
    assert "port" in refused(capsys, "mcp-rl/tiny", "--port", "70000")


def test_other_machines_need_a_key(here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--api-key-env" in refused(capsys, "mcp-rl/tiny", "--host", "0.0.0.0")
    monkeypatch.delenv("SERVE_KEY", raising=False)
    assert "SERVE_KEY holds no key" in refused(capsys, "mcp-rl/tiny", "--api-key-env", "SERVE_KEY")
    monkeypatch.setenv("SERVE_KEY", "two words")
    assert "cannot be sent" in (said := refused(capsys, "mcp-rl/tiny", "--api-key-env", "SERVE_KEY"))
    assert "two words" not in said


def test_a_taken_port_is_one_sentence(here: Path, capsys: Captured) -> None:
    with bind("127.0.0.1", 0) as taken:  # as by another server that is still loading
        port = taken.getsockname()[1]
        assert f"The port {port} of 127.0.0.1 is taken" in refused(capsys, "mcp-rl/tiny", "--port", str(port))


def test_models_are_served_until_ctrl_c(here: Path) -> None:
    adapter = train_one_step(here)
    words = [sys.executable, "-m", "mcp_rl", "serve", "calc-001", str(adapter), "--port", "0"]
    environment = {**os.environ, "SERVE_KEY": "sesame", "PYTHONPATH": str(Path(__file__).parents[3])}
    words += ["--api-key-env", "SERVE_KEY"]
    with subprocess.Popen(words, cwd=here, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while "mcp-rl evaluate" not in said:
                line = process.stdout.readline()
                assert line, said
                said += line
            assert "sesame" not in said and '"Authorization: Bearer $SERVE_KEY"' in said
            url = re.search(r"http://127\.0\.0\.1:\d+/v1", said)
            assert url is not None
            client = openai.OpenAI(base_url=url[0], api_key="sesame", max_retries=0)
            assert [m.id for m in client.models.list()] == ["calc-001", "calc-001@1", "0000"]
            asked = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 5}
            first = {
                name: client.chat.completions.create(model=name, logprobs=True, **asked).choices[0].logprobs.content[0]
                for name in ("calc-001", "calc-001@1", "0000")
            }
            assert first["calc-001"] == first["calc-001@1"] != first["0000"]
            assert httpx.get(f"{url[0]}/models").status_code == 401
            endless = {"model": "calc-001", "prompt": "hello", "temperature": 0, "max_tokens": 8000}
            with ThreadPoolExecutor() as threads:
                asked = threads.submit(unanswered, f"{url[0]}/completions", endless)
                time.sleep(0.5)
                process.send_signal(signal.SIGINT)
                assert asked.result(timeout=120)
            rest = process.communicate(timeout=120)[0]
        finally:
            process.kill()
    assert (process.returncode, rest.strip()) == (0, "Stopped.")


def unanswered(url: str, body: dict[str, Any]) -> bool:
    """Return whether a request ended without an answer."""
    try:
        return httpx.post(url, json=body, headers={"authorization": "Bearer sesame"}, timeout=None).status_code >= 500
    except httpx.TransportError:
        return True


def train_one_step(folder: Path) -> Path:
    """Write a run calc-001 with one step, and return the folder of its first adapter, which changes nothing."""
    import anyio
    import torch

    from mcp_rl.backends.local import LocalBackend
    from mcp_rl.config import LoraConfig, TrainConfig
    from mcp_rl.model import TrainableModel

    async def train() -> None:
        model = TrainableModel("calc-001", "default", "mcp-rl/tiny", base_path=folder / ".mcp_rl")
        config = TrainConfig(checkpoint_every=1, lora=LoraConfig(rank=4, alpha=8))
        async with LocalBackend(in_process=True, config=config, keep=5) as backend:
            await model.register(backend)
            learner = backend.learner
            with torch.no_grad():
                for name, weight in learner.model.named_parameters():
                    if "lora_B" in name:
                        weight.fill_(0.01)
            learner.step = 1
            await backend.save(model)

    anyio.run(train)
    return folder / ".mcp_rl" / "default" / "models" / "calc-001" / "checkpoints" / "0000"
