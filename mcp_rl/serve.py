"""`mcp-rl serve`: trained models behind OpenAI's protocol, on a port of this machine.

What is wrong with the words of the command is found before anything is loaded, the port among it. Then one base is
loaded with the policies that were trained on it, by our engine or by vLLM, and the same application serves both: what
a model is given is rendered as in training. vLLM itself stays on loopback behind a key that nobody else knows.
"""

import contextlib
import json
import os
import re
import shlex
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_rl.backends.choices import engine_kind
from mcp_rl.config import EngineConfig, PlacementConfig
from mcp_rl.errors import ConfigError
from mcp_rl.evaluation.models import ModelSpec, find_model
from mcp_rl.overrides import load_section
from mcp_rl.serving.app import make_app
from mcp_rl.serving.refusals import failed
from mcp_rl.serving.served import Served
from mcp_rl.serving.service import Service

_BACKLOG = 2048
"""Connections that wait to be accepted: uvicorn's own number."""
_SETTING = re.compile(r"\w+(\.\w+)+=")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass
class ServeJob:
    """What is to be served, resolved and checked as far as that goes without loading anything."""

    models: list[ModelSpec]
    names: list[list[str]]
    """What each model may be called, its own name first."""
    engine: EngineConfig
    placement: PlacementConfig
    folder: Path
    """Where logs go."""
    host: str
    port: int
    key_variable: str | None = None
    key: str | None = field(default=None, repr=False)
    serving: bool = False
    """Whether requests are being answered."""


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
    """`words` are names of models and settings of the section `engine`. Raises UserError."""
    overrides = [word for word in words if _SETTING.match(word)]
    names = [word for word in words if word not in overrides]
    if not names:
        raise ConfigError("A model is needed: the name of a run such as calc-001 or calc-001@5, a folder, mcp-rl/tiny.")
    key = _key(key_variable)
    if host not in LOOPBACK and key is None:
        raise ConfigError(
            f"Whoever reaches {host} could use the model: name the environment variable that holds a key with "
            "--api-key-env VARIABLE, or leave --host out."
        )
    settings = load_section("engine", EngineConfig, overrides, {"kind": engine} if engine else {})
    if settings.kind == "local" and settings.url:
        raise ConfigError(f"{settings.url} is a vLLM server's, and --engine local is to sample; leave one of them out.")
    models = [_model(name, project / "models") for name in names]
    called, placement = _names(names, models), PlacementConfig(engine_gpus=engine_gpus or ())
    if engine_kind(settings) == "vllm":
        from mcp_rl.backends.serving import check_served

        check_served(models, settings, placement)
    return ServeJob(
        models,
        called,
        settings,
        placement,
        project / "serving",
        host,
        port,
        key_variable,
        key,
    )


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
        raise ConfigError(
            f"{name} has no weights of its own that could be served: name a run, a folder or a base model."
        )
    return spec


def _names(words: Sequence[str], models: Sequence[ModelSpec]) -> list[list[str]]:
    """A run is called by its name, with and without its step; a folder by its own name. Raises ConfigError."""
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


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises ConfigError where it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)  # two sockets may be bound to one port as long as neither listens
    except OSError as error:
        if error.errno == 98 or "in use" in str(error):
            raise ConfigError(
                f"The port {port} of {host} is taken; choose another with --port, or any free one with --port 0."
            ) from error
        raise ConfigError(f"Cannot serve on {host}, port {port}: {error.strerror or error}.") from error
    return bound


async def run_serving(job: ServeJob, say: Callable[[str], None]) -> None:
    """Serve until the task is cancelled. Raises UserError, EngineError."""
    from mcp_rl.backends.serving import opened_models  # imports torch, where our engine samples

    switch = Switch()
    with contextlib.closing(bind(job.host, job.port)) as bound:
        say(f"Loading {', '.join(names[0] for names in job.names)} …")
        async with (
            _running(switch, bound) as port,
            opened_models(job.models, job.engine, job.placement, job.folder, say) as opened,
        ):
            created = int(time.time())
            served = [
                Served(lambda names=names: names, lambda e=e: e, lambda c=c: c, spec.name, created)  # type: ignore[misc]
                for names, spec, (e, c) in zip(job.names, job.models, opened.models, strict=True)
            ]
            switch.app = make_app(Service(served, away=opened.away), key=job.key)
            job.serving = True
            for line in next_words(job, port):
                say(line)
            await opened.until_gone()


class Switch:
    """The application, once the models are there."""

    def __init__(self) -> None:
        self.app: ASGIApp = _loading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


async def _loading(scope: Scope, receive: Receive, send: Send) -> None:
    refusal = failed("The model is being loaded; try again in a moment.", status=503, again=True)
    await JSONResponse(refusal.body, refusal.status, refusal.headers)(scope, receive, send)


@contextlib.asynccontextmanager
async def _running(app: ASGIApp, bound: socket.socket) -> AsyncIterator[int]:
    """The application on a socket. In the end turns in flight have a second, then they are cancelled."""
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)

    async def serve() -> None:
        with anyio.CancelScope(shield=True):
            await server.serve(sockets=[bound])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        while not server.started:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        try:
            yield bound.getsockname()[1]
        finally:
            server.should_exit = True


class _Server(uvicorn.Server):
    """Signals are the command's."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


def next_words(job: ServeJob, port: int) -> list[str]:
    """What is served where, and what to type next."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(job.host, job.host)
    url = f"http://{reachable}:{port}/v1"
    name = job.names[0][0]
    lines = []
    for names, spec in zip(job.names, job.models, strict=True):
        also = f" (also {', '.join(names[1:])})" if names[1:] else ""
        lines.append(f"Serving {names[0]}{also} on {url}." if spec is job.models[0] else f"    and {names[0]}{also}.")
    variable, first = job.key_variable, job.models[0]
    header = f' -H "Authorization: Bearer ${variable}"' if variable else ""
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "What is 2 plus 3?"}]})
    key = f'os.environ["{variable}"]' if variable else '"none"'
    server = first.identity.server if first.identity else "mcp_calculator"
    return [
        *lines,
        "Ctrl-C ends it. Ask it with",
        "",
        f"  curl {url}/chat/completions{header} -H 'Content-Type: application/json' -d {shlex.quote(body)}",
        f'  AsyncOpenAI(base_url="{url}", api_key={key}).chat.completions.create(model="{name}", messages=…)',
        f'  litellm.acompletion("hosted_vllm/{name}", api_base="{url}", api_key={key}, messages=…)',
        f"  {f'OPENAI_API_KEY=${variable} ' if variable else ''}mcp-rl evaluate --server {server} "
        f"--model openai/{name} --base-url {url}",
        "",
    ]
