"""`mcp-rl serve`: serve trained models behind OpenAI's protocol on a port of this machine.

Errors in the command, a taken port included, are found before anything is loaded. Then one base is loaded with the
policies that were trained on it, by the in-process engine or by vLLM. The same application serves both, so prompts are
rendered as in training. vLLM itself stays on loopback behind a random key.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from mcp_rl.backends.plan.choices import engine_kind
from mcp_rl.config import EngineConfig, PlacementConfig
from mcp_rl.config.load import load_section
from mcp_rl.errors import ConfigError
from mcp_rl.evaluation.models import ModelSpec, find_model
from mcp_rl.inference.openai_api.app import make_app
from mcp_rl.inference.openai_api.refusals import failed
from mcp_rl.inference.openai_api.running import bind, running
from mcp_rl.inference.openai_api.served import fixed_model
from mcp_rl.inference.openai_api.service import Service
from mcp_rl.run_directory import RunDirectory, typed_errors
from mcp_rl.runs.settings import Origin
from mcp_rl.runs.trained_tools import Trained, turn_limit
from mcp_rl.system.durable import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

_SETTING = re.compile(r"\w+(\.\w+)+=")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass
class ServeJob:
    """Models to serve, resolved and checked as far as possible without loading anything."""

    models: list[ModelSpec]
    names: list[list[str]]
    """Names of each model, its own name first."""
    trained: list[Trained]
    """The training of each model, as its folder tells it."""
    engine: EngineConfig
    placement: PlacementConfig
    folder: Path
    """Folder of the logs."""
    host: str
    port: int
    key_variable: str | None = None
    key: str | None = field(default=None, repr=False)
    serving: bool = False
    """True while requests are being answered."""


def prepare(
    words: Sequence[str],
    *,
    engine: str | None = None,
    engine_gpus: tuple[int, ...] | None = None,
    project: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    key_variable: str | None = None,
) -> ServeJob:
    """Resolve and check the command. `words` are names of models and settings of the section `engine`. Raises
    UserError."""
    overrides = [word for word in words if _SETTING.match(word)]
    names = [word for word in words if word not in overrides]
    if not names:
        raise ConfigError("Name a model to serve: a run such as calc-001 or calc-001@5, a folder, or mcp-rl/tiny.")
    key = _key(key_variable)
    if host not in LOOPBACK and key is None:
        raise ConfigError(
            f"Anyone who reaches {host} could use the model: name the environment variable that holds a key with "
            "--api-key-env VARIABLE, or leave --host out."
        )
    settings = load_section("engine", EngineConfig, overrides, {"kind": engine} if engine else {})
    if settings.kind == "local" and settings.url:
        raise ConfigError(f"The vLLM server {settings.url} cannot sample with --engine local; leave one of them out.")
    models = [_model(name, project / "models") for name in names]
    called, placement = _names(names, models), PlacementConfig(engine_gpus=engine_gpus or ())
    if engine_kind(settings) == "vllm":
        from mcp_rl.backends.samplers.opened import check_served

        check_served(models, settings, placement)
    trained = [Trained.of(model) for model in models]
    return ServeJob(models, called, trained, settings, placement, project / "serving", host, port, key_variable, key)


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not (key := os.environ.get(variable, "")):
        raise ConfigError(f"The environment variable {variable} holds no key: set it, or leave --api-key-env out.")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"The key in {variable} cannot be sent in a header; use letters, digits and punctuation.")
    return key


def _model(name: str, runs: Path) -> ModelSpec:
    spec = find_model(name, runs)
    if spec.kind not in ("base", "checkpoint"):
        raise ConfigError(f"{name} has no weights to serve: name a run, a folder or a base model.")
    return spec


def _names(words: Sequence[str], models: Sequence[ModelSpec]) -> list[list[str]]:
    """Name the models: a run by its name, with and without its step, a folder by its own name. Raises ConfigError."""
    found = []
    for word, spec in zip(words, models, strict=True):
        if spec.run is not None:
            run, at, _ = word.partition("@")
            run = Path(run).expanduser().resolve().name if Path(run).expanduser().is_dir() else run
            found.append([f"{run}@{spec.step}"] if at else [run, f"{run}@{spec.step}"])
        elif Path(word).expanduser().is_dir():
            found.append([Path(word).expanduser().resolve().name])
        else:
            found.append([spec.name])
    known: set[str] = set()
    for names in found:
        if taken := known.intersection(names):
            raise ConfigError(f"Two models would both be called {sorted(taken)[0]!r}; serve one of them on its own.")
        known.update(names)
    return found


async def run_serving(job: ServeJob, say: Callable[[str], None]) -> None:
    """Serve until the task is cancelled. Raises UserError, EngineError."""
    from mcp_rl.backends.samplers.opened import opened_models  # imports torch

    switch = Switch()
    with contextlib.closing(bind(job.host, job.port)) as bound:
        say(f"Loading {', '.join(names[0] for names in job.names)} …")
        for sentence in (sentence for model in job.models for sentence in model.unchecked):
            say(sentence)
        async with (
            running(switch, bound) as port,
            opened_models(job.models, job.engine, job.placement, job.folder, say) as opened,
        ):
            created = int(time.time())
            served = [
                fixed_model(names, engine, chat, spec.name, created, max_tokens=turn_limit(spec, trained))
                for names, spec, trained, (engine, chat) in zip(
                    job.names, job.models, job.trained, opened.models, strict=True
                )
            ]
            switch.app = make_app(Service(served, away=opened.away), key=job.key)
            job.serving = True
            for line in next_words(job, port):
                say(line)
            await opened.until_gone()


class Switch:
    """An application that answers 503 until the models are loaded."""

    def __init__(self) -> None:
        self.app: ASGIApp = _loading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


async def _loading(scope: Scope, receive: Receive, send: Send) -> None:
    refusal = failed("The model is still being loaded; try again in a moment.", status=503, again=True)
    await JSONResponse(refusal.body, refusal.status, refusal.headers)(scope, receive, send)


def next_words(job: ServeJob, port: int) -> list[str]:
    """List the served names, and requests to paste; write the first model's request. Raises RunDirectoryError."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(job.host, job.host)
    url = f"http://{reachable}:{port}/v1"
    name, first, trained, variable = job.names[0][0], job.models[0], job.trained[0], job.key_variable
    lines = []
    for names, spec in zip(job.names, job.models, strict=True):
        also = f" (also {', '.join(names[1:])})" if names[1:] else ""
        lines.append(f"Serving {names[0]}{also} on {url}." if spec is job.models[0] else f"    and {names[0]}{also}.")
    limits = " and ".join(dict.fromkeys(str(turn_limit(*known)) for known in zip(job.models, job.trained, strict=True)))
    lines.append(f"A turn has at most {limits} tokens, as in training, unless a request sets max_tokens.")
    lines += [trained.missing] if trained.missing else []
    file = _write_request(job.folder, name, _request(name, first, trained))
    place = str(file.resolve())
    header = f' -H "Authorization: Bearer ${variable}"' if variable else ""
    key = f'os.environ["{variable}"]' if variable else '"none"'
    holds = "the tools and the system prompt" if trained.tools and trained.tools.system_prompt else "the tools"
    seen = f", with {holds} of the training" if trained.tools else ""
    return [
        *lines,
        f"A first request{seen}, is in {file}. Press Ctrl-C to stop; send the request with",
        "",
        f"  curl {url}/chat/completions{header} -H 'Content-Type: application/json' -d {shlex.quote('@' + place)}",
        "",
        "or from Python with",
        "",
        f"  import json, {'os, ' if variable else ''}openai",
        f'  client = openai.OpenAI(base_url="{url}", api_key={key})',
        f"  request = json.load(open({json.dumps(place)}))",
        "  print(client.chat.completions.create(**request).choices[0].message)",
        "",
        "or play whole episodes with",
        "",
        f"  {f'OPENAI_API_KEY=${variable} ' if variable else ''}mcp-rl evaluate {_server_option(first, trained)} "
        f"--model openai/{name} --base-url {url}",
        "",
    ]


def _server_option(model: ModelSpec, trained: Trained) -> str:
    """Return the options that name the server of the training; SERVER stands for one that was not recorded."""
    servers = trained.server.split("+") if trained.server else ["mcp_calculator"]
    if model.run is not None and model.identity is not None:
        servers = Origin.of(model.run.path).server_words or ["SERVER"]
    return shlex.join([word for server in servers for word in ("--server", server)])


def _request(name: str, model: ModelSpec, trained: Trained) -> dict[str, Any]:
    """Return a request that shows the model what it saw in training: its tools, its system prompt, a task."""
    messages = [{"role": "user", "content": first_question(model.run)}]
    if trained.tools is None:
        return {"model": name, "messages": messages}
    if trained.tools.system_prompt:
        messages.insert(0, {"role": "system", "content": trained.tools.system_prompt})
    return {"model": name, "messages": messages, "temperature": 0, "tools": trained.tools.tools}


def first_question(run: RunDirectory | None) -> str:
    """Return the run's first held-out task with the fewest calls, or a question for a calculator."""
    held_out = [scenario for scenario in (run.scenarios("val") if run else None) or [] if scenario.reference]
    shortest = min(held_out, key=lambda scenario: len(scenario.reference), default=None)
    return shortest.task_description if shortest else "What is 2 plus 3?"


def _write_request(folder: Path, name: str, request: dict[str, Any]) -> Path:
    file = folder / (re.sub(r"[^\w.@-]+", "-", name) + ".json")
    with typed_errors(file):
        write_atomically(file, (json.dumps(request, indent=2, ensure_ascii=False) + "\n").encode())
    return file
