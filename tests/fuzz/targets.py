"""Functions that take in what strangers send, each with a strategy; they may raise only errors of our tree.

Each function is synchronous, so that its time is the time for which it would hold an event loop.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from limits import limited, refused
from mcp import MCPError
from strangers import BLOCKS, BOUNDS, ENTRIES, HOW_LONG, NAMES, OBJECT_SCHEMAS, PAGES, RESULTS, TEXTS, VALUES

from mcp_rl.explore.answer import call_key, holds_secret, lasting_answer, says_nothing
from mcp_rl.explore.check.inspection import prompt_tokens
from mcp_rl.explore.check.listed import listing_findings
from mcp_rl.explore.explorable import explorable, reads_only
from mcp_rl.explore.hints import alternatives, bounds
from mcp_rl.explore.parts import fits, parts_of
from mcp_rl.explore.sample import Sampler
from mcp_rl.explore.values_seen import ValuePool
from mcp_rl.inference.chat.dialects.hermes import parse_completion
from mcp_rl.rewards.dates import undated
from mcp_rl.rewards.json_values import NoJson, first_difference, json_in, same_json
from mcp_rl.scenario import StdioServer
from mcp_rl.scenarios.chain import Chains
from mcp_rl.scenarios.reference import parameter_defaults
from mcp_rl.scenarios.wording import Wording
from mcp_rl.system.visible import visible
from mcp_rl.toolserver.connection.call import Call
from mcp_rl.toolserver.connection.era import EndedAtProbe, EraError, negotiate
from mcp_rl.toolserver.connection.rounds import result_of
from mcp_rl.toolserver.connection.stdio import Lines
from mcp_rl.toolserver.elicitation import answer, exchange
from mcp_rl.toolserver.isolation import effective_isolation
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.toolserver.tools.budgets import json_size
from mcp_rl.toolserver.tools.listing import Tool, list_tools, read_tool
from mcp_rl.toolserver.tools.offered import OfferedLink
from mcp_rl.toolserver.tools.relisting import listing_change
from mcp_rl.toolserver.tools.results import read_result
from mcp_rl.toolserver.tools.schema import ToolSchemas
from mcp_rl.toolserver.tools.validation import Checker

PARAMS = StdioServer(command="x")
SERVER = ToolServer("it", "A server.", {"stdio": PARAMS}, None)


@dataclass(frozen=True)
class Target:
    """One kind of input."""

    inputs: st.SearchStrategy[Any]
    run: Callable[[Any], None]
    prepare: Callable[[], object] = lambda: None
    """Makes what all inputs share, before the first one."""
    costs: int = 1
    """How much slower than others an input is."""


def run_tools(tools: list[Tool]) -> ToolSchemas:
    """Do what is done with a listing before any call."""
    schemas = ToolSchemas(tools)
    json.dumps(schemas.openai)
    assert len(schemas.hash) == 16
    explorable(tools, SERVER)
    effective_isolation(SERVER, tools)
    parameter_defaults(tools)
    return schemas


def read_schema(case: tuple[Any, list[Any]]) -> None:
    """Read a tool by its schema, draw arguments, and check values with it."""
    schema, values = case
    entry = {"name": "tool", "inputSchema": schema, "outputSchema": schema}
    with limited():
        tool = refused(lambda: read_tool(entry), ValueError)
    if not isinstance(tool, Tool):
        return
    with limited():
        schemas = run_tools([tool])
    pool, draws = ValuePool(), []
    sampler = Sampler(tool.name, tool.input_schema, pool)
    for seed in range(2):
        with limited():
            draws.append(sampler.draw(random.Random(seed)))
    for draw in filter(None, draws):
        json.dumps(draw.arguments)
        with limited():
            assert schemas.validate("tool", draw.arguments) is None, "drawn arguments are valid"
    for value in values:
        with limited():
            said = schemas.validate("tool", value)
        assert said is None or (said and len(said) < 50_000)
        with limited():
            Checker(tool.output_schema).errors(value)


def read_listing(case: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
    """List the tools of a server twice, compare, and say what is remarkable about them."""
    listings = []
    for pages in case:
        left = iter(pages)

        async def ask(method: str, params: dict[str, Any], left: Any = left) -> dict[str, Any]:
            json.dumps(params, ensure_ascii=True)
            return next(left, {})

        with limited():
            listings.append(asyncio.run(list_tools(ask)))
    (before, warnings), (after, _) = listings
    assert all(visible(warning) for warning in warnings)
    with limited():
        listing_change(before, after)
    with limited():
        schemas = run_tools(before)
    with limited(holds_loop=False):  # a command of its own
        list(listing_findings(SERVER, PARAMS, before, warnings, schemas))
        prompt_tokens(schemas.openai)
    drawing = random.Random(0)
    with limited():
        samplers = {tool.name: Sampler(tool.name, tool.input_schema, ValuePool()) for tool in before[:3]}
        Chains(samplers, {tool.name: tool.input_schema for tool in before[:3]}, ValuePool())
    for tool in before[:3]:
        with limited():
            drawn = samplers[tool.name].draw(drawing)
        with limited():
            reads_only(tool)
            if drawn is not None:
                Wording(before, schemas.to_openai).clause(tool.name, drawn.arguments, drawing)


def read_results(case: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Read the result of a call, as a rollout and as exploring do."""
    raw, arguments = case
    with limited():
        result = read_result(raw, 0.1)
        assert len(result.text) < 50_000
    with limited():
        learn(result.text, arguments)


def learn(text: str, arguments: dict[str, Any]) -> None:
    """Learn from the text of a result and of an error."""
    pool = ValuePool()
    pool.observe(arguments, text)
    pool.observe_error("tool", arguments, text)
    answer = lasting_answer(text, arguments)
    assert answer.kind in ("number", "text", "calls")
    holds_secret(text), says_nothing(text), undated(text), alternatives(text), bounds(text), visible(text, lines=True)
    for part in parts_of(text)[:50]:
        fits(part, "note_id")
    call_key("tool", arguments)
    parse_completion(f"<tool_call>{text}</tool_call>")
    try:
        given = json_in(text)
    except NoJson:
        return
    same_json(given, arguments)
    first_difference(given, arguments)


def read_text(case: tuple[str, dict[str, Any]]) -> None:
    """Learn from a text alone."""
    text, arguments = case
    with limited():
        learn(text[:40_000], arguments)


class _Link:
    """A server's resources and prompts."""

    tools: tuple[Tool, ...] = ()
    warnings: tuple[str, ...] = ()
    capabilities = frozenset({"resources", "prompts"})

    def __init__(self, listed: Any, raw: Any) -> None:
        self._listed, self._raw = listed, raw

    async def ask(self, method: str, params: Any = None, *, deadline: float | None = None) -> Any:
        return self._raw

    async def resources(self) -> list[dict[str, Any]]:
        return [e for e in self._listed if isinstance(e, dict) and isinstance(e.get("uri"), str)]

    async def prompts(self) -> list[dict[str, Any]]:
        return [e for e in self._listed if isinstance(e, dict) and isinstance(e.get("name"), str)]


def read_offered(case: tuple[Any, Any, dict[str, Any]]) -> None:
    """List and read resources and prompts as a model does."""
    listed, read, arguments = case
    keys = ("contents", "messages", "resourceTemplates")
    link = _Link(listed if isinstance(listed, list) else [], dict.fromkeys(keys, read))
    offered = OfferedLink(link)  # type: ignore[arg-type]
    offered.add_resources(link)  # type: ignore[arg-type]
    offered.add_prompts(link)  # type: ignore[arg-type]
    for tool in ("list_resources", "read_resource", "list_prompts", "get_prompt"):
        with limited():
            result = asyncio.run(offered.call(tool, arguments))
        assert len(result.text) < 50_000
    with limited():
        pool = ValuePool()
        pool.observe_resources(asyncio.run(link.resources()))


def read_lines(chunks: list[bytes]) -> None:
    """Read what a server writes."""
    lines = Lines(longest=2**20)
    with limited():
        for chunk in chunks:
            for message in lines.messages(chunk):
                assert message is not None


MOST_SENT = 2**21
"""Size of one input, in characters of JSON."""


def as_json(value: Any) -> bytes:
    """Return the JSON of a value, and that of nothing if it is too large."""
    return json.dumps(value).encode() if json_size(value, MOST_SENT) <= MOST_SENT else b"null"


class _Asked:
    """A session with a server that answers everything with what is given."""

    over, modern, revision = False, True, "2026-07-28"

    def __init__(self, answers: list[Any]) -> None:
        self._answers = answers

    async def ask(self, method: str, params: Any, *more: Any, **options: Any) -> dict[str, Any]:
        json.dumps(params)
        found = self._answers.pop(0) if self._answers else {}
        return found if isinstance(found, dict) else {}


async def _answered(answers: list[Any], pause: float) -> None:
    async def answer_it(params: dict[str, Any], call: Call | None) -> dict[str, Any]:
        said = await answer("defaults", params, {"name": "act", "arguments": {}})
        json.dumps(exchange(params, said))
        return said

    async def relist() -> None:
        pass

    call = Call("tools/call", {"name": "act", "arguments": {}}, server="It", seconds=pause)
    session: Any = _Asked(answers)
    with contextlib.suppress(MCPError, EraError):
        await asyncio.wait_for(result_of(call, session, answer_it, relist), pause)


def read_questions(case: tuple[Any, list[Any], dict[str, Any]]) -> None:
    """Follow a call whose server asks for input, answers with a task, or names what it speaks."""
    asked, answers, described = case

    async def agreed(method: str, params: Any, options: Any) -> dict[str, Any]:
        return described

    async def told(method: str, options: Any) -> None:
        pass

    with limited():
        asyncio.run(answer("defaults", asked, None))
    with limited(), contextlib.suppress(MCPError, EraError, EndedAtProbe):
        asyncio.run(negotiate(agreed, told, handshake=bool(answers)))
    with limited(), contextlib.suppress(TimeoutError):
        asyncio.run(_answered(list(answers), 0.05))


FORMS = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.one_of(st.just("form"), st.just("form"), VALUES),
        "message": st.one_of(TEXTS, VALUES),
        "requestedSchema": st.one_of(
            OBJECT_SCHEMAS,
            st.fixed_dictionaries(
                {"properties": st.one_of(st.dictionaries(NAMES, VALUES, max_size=3), VALUES), "required": VALUES}
            ),
        ),
    },
)
"""Parameters of a request for input."""
REQUESTS = st.one_of(
    st.dictionaries(
        NAMES,
        st.one_of(st.fixed_dictionaries({"method": st.just("elicitation/create"), "params": FORMS}), VALUES),
        max_size=3,
    ),
    VALUES,
)
STAGES = st.one_of(
    st.fixed_dictionaries(
        {"resultType": st.one_of(st.sampled_from(["input_required", "task", "complete"]), VALUES)},
        optional={
            "inputRequests": REQUESTS,
            "requestState": VALUES,
            "taskId": st.one_of(st.just("1"), VALUES),
            "status": st.one_of(st.sampled_from(["working", "input_required", "completed", "failed"]), VALUES),
            "pollIntervalMs": st.one_of(BOUNDS, VALUES),
            "result": st.one_of(RESULTS, VALUES),
            "error": st.one_of(st.fixed_dictionaries({"code": VALUES, "message": VALUES}), VALUES),
            "statusMessage": VALUES,
        },
    ),
    VALUES,
)
"""Answers to a call that is not done yet, and to the questions after its task."""
DESCRIBED = st.fixed_dictionaries(
    {},
    optional={
        "supportedVersions": st.one_of(st.lists(st.one_of(st.just("2026-07-28"), VALUES), max_size=3), VALUES),
        "protocolVersion": st.one_of(st.just("2025-11-25"), VALUES),
        "capabilities": VALUES,
        "serverInfo": st.one_of(st.fixed_dictionaries({"name": VALUES, "version": VALUES}), VALUES),
        "_meta": VALUES,
    },
)
"""A server's description of itself."""
_JSON_BYTES = VALUES.map(as_json)
FRAMES = st.one_of(
    st.binary(max_size=200),
    _JSON_BYTES,
    st.builds(lambda part, times: (part * times)[:3_000_000], st.binary(max_size=20), HOW_LONG),
    st.fixed_dictionaries(
        {"jsonrpc": st.one_of(st.just("2.0"), VALUES)},
        optional={
            "id": st.one_of(st.integers(0, 5), st.sampled_from([10**30, -1, "1", None, 1.5, True]), VALUES),
            "method": st.one_of(
                st.sampled_from(
                    ["ping", "sampling/createMessage", "roots/list", "elicitation/create", "notifications/progress",
                     "notifications/tools/list_changed", "notifications/cancelled", "notifications/message"]
                ),
                VALUES,
            ),
            "params": st.one_of(
                st.fixed_dictionaries({}, optional=dict.fromkeys(["progressToken", "requestId", "_meta"], VALUES)),
                VALUES,
            ),
            "result": st.one_of(RESULTS, VALUES),
            "error": st.one_of(st.fixed_dictionaries({"code": VALUES, "message": VALUES, "data": VALUES}), VALUES),
        },
    ).map(as_json),
)  # fmt: skip
"""Lines of a server on stdio, and bodies of an HTTP answer."""
ARGUMENTS = st.one_of(st.just({}), st.dictionaries(st.text(max_size=5), VALUES, max_size=2), VALUES).map(
    lambda value: value if json_size(value, 2**18) <= 2**18 else {}
)
"""Arguments that a model might send, as long as its tokens allow."""
CALLED = st.dictionaries(st.text(max_size=5), st.recursive(st.text(max_size=9) | st.integers(), st.lists), max_size=2)
"""Arguments that a model might have sent."""


def sent(inputs: st.SearchStrategy[Any], run: Callable[[Any], None]) -> Target:
    """Leave out what is so large that making it takes most of the time; `found.py` has whole megabytes.

    Not a filter of the strategy: hypothesis would keep its representation, of gigabytes.
    """

    def small(value: Any) -> None:
        if json_size(list(value), MOST_SENT) <= MOST_SENT:
            run(value)

    return Target(inputs, small)


TARGETS = {
    "schemas": sent(st.tuples(OBJECT_SCHEMAS, st.lists(ARGUMENTS, max_size=2)), read_schema),
    "listings": sent(st.tuples(PAGES, PAGES), read_listing),
    "results": sent(st.tuples(RESULTS, CALLED), read_results),
    "texts": sent(st.tuples(TEXTS, CALLED), read_text),
    "offered": sent(st.tuples(ENTRIES, st.one_of(ENTRIES, BLOCKS), CALLED), read_offered),
    "questions": sent(st.tuples(FORMS, st.lists(STAGES, max_size=3), DESCRIBED), read_questions),
    "lines": Target(
        st.lists(st.one_of(FRAMES, st.just(b"\n"), FRAMES.map(lambda frame: frame + b"\n")), max_size=4), read_lines
    ),
}
