"""Kinds of input that take longer to read: event streams, files of every kind, run folders, checkpoints, templates."""

import asyncio
import functools
import gzip
import json
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from answering_server import answering
from files import FILES, check, damage, say
from hypothesis import strategies as st
from limits import limited, refused, watched_loop
from strangers import HOW_LONG, HOW_MANY, TEXTS
from targets import FRAMES, Target, as_json

from mcp_rl.errors import McpRlError, ServerFault
from mcp_rl.scenario import SseServer, StreamableHttpServer
from mcp_rl.toolserver.connection.connection import connect

SEEDS = st.integers(0, 2**32 - 1)


@functools.cache
def ground() -> Path:
    """Return the folder in which files are damaged, one for each process."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    os.environ["TMPDIR"] = str(folder)  # for tracebacks of bugs
    tempfile.tempdir = None
    return folder


def place(name: str) -> Path:
    """Return an empty folder of this process."""
    folder = ground() / f"{name}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


# -- event streams

GOOD = as_json({"jsonrpc": "2.0", "id": "NUMBER", "result": {"content": [{"type": "text", "text": "fine"}]}})
FIELDS = st.sampled_from([b"data: ", b"data:", b"data", b"id: ", b"retry: ", b"event: ", b": ", b"", b"x: ", b"\xff: "])
CONTENTS = st.one_of(
    st.just(GOOD),
    FRAMES.map(lambda frame: frame.replace(b"\n", b" ")[:200_000]),
    st.sampled_from([b"0", b"-1", b"9" * 400, b"9" * 5000, b"1", b"message", b"ping", b"endpoint", b"\0", b"\xff\xfe"]),
    st.binary(max_size=20),
    st.sampled_from([b"/messages", b"http://127.0.0.1:1/x", b"file:///etc/passwd", b"http://[", b"//x", b"?" * 70_000]),
)
LINES = st.tuples(FIELDS, CONTENTS, st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n", b""])).map(b"".join)
LONGEST_STREAM = 2_000_000


def repeated(line: bytes, times: int) -> bytes:
    return line * min(times, LONGEST_STREAM // max(1, len(line)))


STREAMS = st.one_of(
    st.lists(LINES, max_size=6).map(b"".join),
    st.builds(repeated, LINES, HOW_MANY),
    st.builds(repeated, LINES, HOW_LONG),
)
ENDINGS = st.sampled_from(["close", "close", "hang", "abort"])
"""End of the connection after a stream."""


async def _streamed(case: Any, transport: str) -> None:
    answers, opened, ending, packed = case
    pack = gzip.compress if packed else bytes
    bodies = [(200, b"text/event-stream", pack(body)) for body in answers]
    headers = b"content-encoding: gzip\r\n" if packed else b""
    async with answering(bodies, opened=pack(opened), ending=ending, headers=headers) as server:
        kind = SseServer if transport == "sse" else StreamableHttpServer
        params = kind(url=f"http://127.0.0.1:{server.port}/{transport}")
        try:
            async with asyncio.timeout(120), connect(params) as connection:
                for _ in answers:
                    try:
                        result = await connection.call("act", {}, deadline=0.3)
                        assert len(result.text) < 50_000
                    except ServerFault as fault:
                        assert str(fault).endswith("."), fault
        except McpRlError as error:
            assert str(error).strip()


def read_streams(case: Any) -> None:
    """Call a server over each HTTP transport that answers with these streams."""
    for transport in ("mcp", "sse")[: 1 if case[3] else 2]:  # the messages between are not packed
        with limited(holds_loop=False), watched_loop():
            asyncio.run(_streamed(case, transport))


# -- files


def read_document(seed: int) -> None:
    """Damage a file of some kind, and run the command that reads it."""
    drawn = random.Random(seed)
    name = drawn.choice(sorted(FILES))
    content, ending, command = FILES[name]
    folder = place("documents")
    os.chdir(folder)
    file = folder / f"file{ending}"
    file.write_bytes(content)
    for _ in range(drawn.choice([1, 1, 2])):
        if file.is_file():
            damage(file, drawn)
    check([*command, str(file)])


CONVERSATION = {
    "messages": [
        {"role": "user", "content": "Add 1 and 2."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "3"},
        {"role": "assistant", "content": "3", "weight": 1},
    ],
    "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
}


def read_conversations(seed: int) -> None:
    """Damage a file of conversations, and render them for training."""
    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.inference.chat.conversation import conversation, read_lines, render

    drawn = random.Random(seed)
    file = place("conversations") / "file.jsonl"
    file.write_bytes((json.dumps(CONVERSATION) + "\n").encode() * 3)
    damage(file, drawn)

    def read() -> None:
        chat = ChatFormat(plain_tokenizer())
        for where, fields in read_lines(file):
            render(conversation(fields, where), chat)

    with limited(holds_loop=False):  # before any loop runs
        refused(read)


@functools.cache
def finished_run() -> Path:
    """Train a small run, sign it, and return its folder."""
    import torch
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    from tests.runs.finished.small_run import make_ground, train

    torch.set_num_threads(1)  # a forked process waits for ever for the threads of its parent
    folder = ground() / "ground"
    folder.mkdir()
    run = train(make_ground(folder), "fuzzed")
    secret = Ed25519PrivateKey.generate()
    key, public = run.with_name("key"), secret.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    key.write_bytes(secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    key.with_suffix(".pub").write_bytes(public)
    code, said = say(
        ["verify", str(run), "--episodes", "0", "--sign", str(key), "--plugin", str(folder / "checksum.py")]
    )
    assert code == 0, said
    return run


def read_run(seed: int) -> None:
    """Damage files of a run, and run the commands that read it."""
    drawn, run = random.Random(seed), finished_run()
    plugin = ["--plugin", str(ground() / "ground" / "checksum.py")]
    out = place("runs") / "out"
    copied = out / "default" / "models" / run.name
    shutil.copytree(run, copied)
    if drawn.random() < 0.7:
        (copied / "seal.json").unlink()  # what reads the damaged file, not what compares it
    shutil.copyfile(run.with_name("key.pub"), key := out / "key.pub")
    files = [path for path in sorted(copied.rglob("*")) if path.is_file() and "checkpoints" not in path.parts]
    files += [key, copied / "seal.sig"]
    for _ in range(drawn.choice([1, 1, 2])):
        damage(drawn.choice(files), drawn)
    commands = (
        ["history", str(copied)],
        ["report", str(copied)],
        ["verify", str(copied), "--episodes", "0", *plugin],
        ["export-trajectories", str(copied), "--out", str(out / "exported.jsonl")],
        ["verify", str(copied), "--episodes", "0", "--check", str(key), *plugin],
        ["fork", str(copied), "--name", "other", "--output-dir", str(out)],
    )
    check(drawn.choice(commands))


# -- checkpoints


@functools.cache
def checkpoint() -> Path:
    """Return a whole checkpoint with an optimiser's state, beside the base model that it adapts."""
    import torch

    from mcp_rl.backends.base.base_model import load_base, make_learner
    from mcp_rl.config import TrainConfig
    from mcp_rl.learning.disk.state import ModelCard, save_learner, tokenizer_files
    from tests.runs.finished.small_run import make_ground

    torch.set_num_threads(1)
    folder = ground() / "checkpoint"
    folder.mkdir()
    base = str(make_ground(folder) / "base")
    model, tokenizer = load_base(base)
    learner = make_learner(model, base, TrainConfig())
    for parameter in learner.parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    learner.optimizer.step()
    save_learner(folder / "checkpoints", learner, tokenizer_files(tokenizer), ModelCard("t", base), frontier={"a": [1]})
    return folder / "checkpoints" / "0000"


def read_checkpoint(seed: int) -> None:
    """Damage files of a checkpoint or of a base model, and load it as training and sampling do."""
    import anyio

    from mcp_rl.backends.base.base_model import load_base, make_learner
    from mcp_rl.backends.samplers.policies import LocalPolicies
    from mcp_rl.config import TrainConfig
    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.learning.disk.checkpoint import Checkpoint
    from mcp_rl.learning.disk.state import restore

    drawn, whole = random.Random(seed), checkpoint()
    folder = place("checkpoints")
    base, copied = folder / "base", folder / "0000"
    shutil.copytree(whole.parent.parent / "base", base)
    shutil.copytree(whole, copied)

    async def sample() -> None:
        async with LocalPolicies(str(base)) as policies:
            await policies.use(copied, 1)

    def train() -> None:
        learner = make_learner(load_base(str(base))[0], str(base), TrainConfig())
        restore(learner, Checkpoint(copied, 0))

    def render() -> None:
        chat = ChatFormat(load_base(str(base))[1])
        chat.initial([{"role": "user", "content": "Add."}], ())
        chat.continuation([{"role": "tool", "content": "7"}])

    work = drawn.choice([lambda: anyio.run(sample), train, render])
    damaged = base if drawn.random() < 0.4 else copied
    names = sorted(path for path in damaged.iterdir() if path.is_file() and path.suffix != ".md")
    damage(drawn.choice(names), drawn)
    with limited(holds_loop=False):
        refused(work)


# -- chat templates

LOOPS = st.sampled_from(
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for a in [[[]]] recursive %}{{ loop(a) }}{{ loop(a) }}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x='ab') %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x|length }}",
        "{% set n = namespace(x=[1]) %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ 2 ** 10000000 }}",
        "{{ 'x'.center(9999999999) }}",
        "{{ 'x'|center(9999999999) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ 'x'.ljust(9999999999) }}",
        "{{ ('x' * 9999).replace('x', 'y' * 9999999) }}",
        "{{ ('a,' * 99999)|replace(',', 'b' * 99999) }}",
        "{{ 'a'|indent(9999999999) }}",
        "{{ (range(99999)|list * 999)|join('x' * 999) }}",
        "{{ '\\n' * 9999|int }}",
        "{{ ('x' * 99999)|urlize }}",
        "{{ ('a ' * 99999)|wordwrap(1) }}",
        "{{ range(99999)|map('string')|list|sort|batch(1)|list|length }}",
        "{{ (1, 2).__class__.__mro__ }}",
        "{{ ''.__class__.__subclasses__() }}",
        "{{ messages.append(messages) }}",
        "{{ messages|tojson * 9999999 }}",
        "{{ cycler(*range(99999)) }}",
        "{{ lipsum(n=100000) }}",
        "{{ undefined.x }}",
        "{{ raise_exception('no') }}",
        "{{ strftime_now('%Y' * 99999) }}",
        "{{ '9' * 9999 }}|int",
        "{% include 'x' %}",
        "{{ 1 / 0 }}",
        "{{ 'x'[::0] }}",
        "{% set x %}{{ x }}{% endset %}",
        "{{ ('9' * 5000)|int }}",
        "{{ 'x'.zfill(9999999999) }}",
        "{{ 'x'.encode('utf-7').decode('idna') }}",
        "{{ ('x\\t' * 9999).expandtabs(999999) }}",
    ]
)
WORDS = st.sampled_from(
    [
        "{{ ",
        " }}",
        "{% ",
        " %}",
        "for m in messages",
        "endfor",
        "if ",
        "endif",
        "m.content",
        "messages",
        "tools",
        "tools|tojson",
        "|length",
        "|tojson",
        "|join",
        "[0]",
        "(",
        ")",
        "range(",
        "99999",
        "-1",
        "~",
        "*",
        "'x'",
        "set x = ",
        "namespace(",
        "loop.index",
        "recursive",
        "loop(",
        "add_generation_prompt",
        "<|im_start|>",
        "<|im_end|>",
        "\n",
    ]
)


@functools.cache
def plain_tokenizer() -> Any:
    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.tiny.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    ChatFormat(tokenizer)
    return tokenizer


SHORT_TEXTS = TEXTS.map(lambda text: text[:1000])
TEMPLATES = st.tuples(
    st.one_of(
        LOOPS, LOOPS, st.lists(st.one_of(WORDS, WORDS, TEXTS.map(lambda text: text[:1000])), max_size=20).map("".join)
    ),
    st.sampled_from(["alone", "before", "after", "inside"]),
)


def read_template(case: tuple[str, str]) -> None:
    """Render a conversation with a stranger's template."""
    from mcp_rl.inference.chat.chat_format import ChatFormat

    tokenizer = plain_tokenizer()
    text, where = case
    usual = tokenizer.chat_template
    inside = usual.replace("{%- for message", text + "{%- for message", 1)
    template = {"alone": text, "before": text + usual, "after": usual + text, "inside": inside}[where]

    def render() -> None:
        chat = ChatFormat(tokenizer)
        chat.initial([{"role": "user", "content": "Add."}], [{"type": "function", "function": {"name": "add"}}])
        chat.continuation([{"role": "tool", "content": "7"}, {"role": "tool", "content": "8"}])

    try:
        tokenizer.chat_template = template
        with limited():
            refused(render)
    finally:
        tokenizer.chat_template = usual


SLOW = {
    "streams": Target(
        st.tuples(st.lists(STREAMS, min_size=1, max_size=2), STREAMS, ENDINGS, st.booleans()), read_streams, costs=5
    ),
    "documents": Target(SEEDS, read_document, ground, costs=2),
    "conversations": Target(SEEDS, read_conversations, plain_tokenizer),
    "runs": Target(SEEDS, read_run, finished_run, costs=2),
    "checkpoints": Target(SEEDS, read_checkpoint, checkpoint, costs=5),
    "templates": Target(TEMPLATES, read_template, plain_tokenizer),
}
