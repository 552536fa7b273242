"""The official conformance suite with our client and our servers. `docs/conformance.md` lists the exceptions."""

import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import anyio
import pytest
import pytest_asyncio

from mcp_rl.plugins.manager import load_plugins
from tests.conformance.client import HANDOVER, clients
from tests.inspector.npm_packages import installed, node_version
from tests.plugins.serving import served

VERSION = "0.2.0-alpha.12"
NODE = "22.23.3"
"""Installed from npm if the machine's own version is below 22."""
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "conformance.md"

pytestmark = pytest.mark.asyncio(loop_scope="module")


def exceptions(section: str) -> dict[str, list[str]]:
    """Return the patterns of scenarios on the page with their outcomes, one for each column."""
    text = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (part,) = (part for part in text if part.startswith(section))
    rows = re.findall(r"^\| (`[^|]+`) \| (.*) \|$", part, flags=re.MULTILINE)
    return {name: cells.split(" | ") for names, cells in rows for name in re.findall("`([^`]+)`", names)}


def to_pass(scenarios: list[str], excepted: dict[str, list[str]], column: int = 0) -> list[str]:
    """Return the scenarios that the page does not except."""
    said = {
        name: next((words for row, words in excepted.items() if fnmatchcase(name, row)), None) for name in scenarios
    }
    return [name for name, words in said.items() if words is None or words[column] == "passes"]


CLIENTS, SERVERS = exceptions("Our client"), exceptions("Our servers")
REFUSED = {
    *("auth/resource-mismatch", "auth/metadata-issuer-mismatch", "auth/iss-supported-missing"),
    *("auth/iss-wrong-issuer", "auth/iss-unexpected", "auth/iss-normalized"),
}
"""Client scenarios with a server that a client must refuse, so that it ends with an error."""


class Suite:
    """Runs the suite and reads its results."""

    def __init__(self, modules: Path) -> None:
        own = shutil.which("node")
        node = own if own and node_version(own) >= (22,) else modules / "node" / "bin" / "node"
        if node_version(node) < (22,):
            pytest.skip("needs Node.js 22, and the one from npm does not run here")
        self.command = [str(node), str(modules / ".bin" / "conformance")]

    async def run(self, *arguments: str | Path) -> str:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
        run = await anyio.run_process([*self.command, *map(str, arguments)], env=environment, check=False)
        return (run.stdout + run.stderr).decode()


@dataclass
class Listed:
    """The names of the suite's scenarios."""

    servers: list[str]
    clients: list[str]


@pytest.fixture(scope="module")
def suite() -> Suite:
    own = shutil.which("node")
    packages = [f"@modelcontextprotocol/conformance@{VERSION}"]
    if own is None or node_version(own) < (22,):
        packages.append(f"node@{NODE}")
    return Suite(installed(*packages))


@dataclass
class Played:
    """All client scenarios, which the suite plays at the same time from one process."""

    summary: str
    """The end of the suite's output: a line for each scenario."""
    errors: dict[str, str]
    """How our client ended in each scenario: the traceback, empty if there was no error."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Played]:
    own = pytest.MonkeyPatch()
    own.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("logins")))
    own.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    async with clients() as (port, errors):
        where = ["--timeout", "120000", "-o", tmp_path_factory.mktemp("client")]
        said = await suite.run(
            "client", "--command", f"{sys.executable} -S {HANDOVER} {port}", "--suite", "all", *where
        )
    own.undo()
    yield Played(said.partition("=== SUITE SUMMARY ===")[2], errors)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def listed(suite: Suite) -> Listed:
    before, _, after = (await suite.run("list")).partition("Client scenarios")
    clients, _, authorization = after.partition("Authorization server scenarios")
    names = [re.findall(r"^  - (\S+) \[", text, flags=re.MULTILINE) for text in (before + authorization, clients)]
    return Listed(*names)


async def test_every_exception_is_a_scenario_of_the_suite(listed: Listed) -> None:
    for rows, names in ((CLIENTS, listed.clients), (SERVERS, listed.servers)):
        assert [row for row in rows if not any(fnmatchcase(name, row) for name in names)] == []


async def test_our_client_passes(listed: Listed, played: Played) -> None:
    scenarios = to_pass(listed.clients, CLIENTS)
    assert len(scenarios) == 36
    for scenario in scenarios:
        passed = re.search(rf"^✓ {re.escape(scenario)}: [1-9]\d* passed, 0 failed$", played.summary, re.MULTILINE)
        assert passed, (scenario, played.summary)
        assert bool(played.errors[scenario]) == (scenario in REFUSED), (scenario, played.errors[scenario])


@pytest.mark.parametrize(("column", "server"), [(0, "mcp_calculator"), (1, "mcp_notes")])
async def test_our_servers_pass(suite: Suite, listed: Listed, tmp_path: Path, column: int, server: str) -> None:
    if server == "mcp_notes" and node_version(shutil.which("node") or "node") < (20,):
        pytest.skip("needs Node.js 20")
    async with served(load_plugins().server(server), "streamable-http") as (_, url):
        said = await suite.run("server", "--url", url, "--suite", "all", "-o", tmp_path)
    scenarios = to_pass(listed.servers, SERVERS, column)
    assert len(scenarios) >= 8
    for scenario in scenarios:
        assert passed(checks(tmp_path, scenario)), (scenario, checks(tmp_path, scenario), said[-2000:])


def checks(folder: Path, scenario: str) -> list[dict[str, Any]]:
    """Return the suite's checks of a server scenario; empty if it made none."""
    files = [
        file for file in folder.glob("*/checks.json") if re.fullmatch(rf"server-{scenario}-20.*", file.parent.name)
    ]
    return [check for file in files for check in json.loads(file.read_text(encoding="utf-8"))]


def passed(found: list[dict[str, Any]]) -> bool:
    statuses = {check["status"] for check in found}
    return "SUCCESS" in statuses and not statuses & {"FAILURE", "WARNING"}
