"""A failing server may print its secrets in its last lines; no file of ours holds them."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from mcp_rl.errors import ServerError
from mcp_rl.rollouts.gather import GroupPlan, gather_groups
from mcp_rl.rollouts.player import SettingPlayer
from mcp_rl.rollouts.speaker import Setting
from mcp_rl.scenario import McpScenario, SseServer, StdioServer, StreamableHttpServer
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.session import Session
from mcp_rl.trajectory import StopReason, Trajectory

KEY = "hunter2-hunter2-hunter2"
TELLS = "import os, sys; sys.exit('refused: ' + os.environ['SERVICE_KEY'])"
params = StdioServer(command="{python}", args=("-S", "-c", TELLS), env={"SERVICE_KEY": "${SERVICE_KEY}"})
scenario = McpScenario(task_description="x", server_params=params)


def never(session: Session) -> Setting:
    raise AssertionError("a server that does not start was played on")


async def test_faults_in_trajectories_and_groups_hold_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_KEY", KEY)

    async def raises(attempt: int) -> Trajectory:
        raise ValueError(f"refused: {KEY}")

    async with Sessions() as sessions:
        player = SettingPlayer(never, sessions)
        plan = GroupPlan(scenario, [lambda attempt: player.play(scenario, attempt), raises])
        (group,) = await gather_groups([plan], redos=1, max_exceptions=2)
    (trajectory,) = group.trajectories
    assert trajectory.stop_reason is StopReason.FAULT
    assert "Its last lines: refused: ${SERVICE_KEY}" in (trajectory.fault or "")
    assert len(group.exceptions) == 3 and KEY not in group.model_dump_json()


@pytest.fixture
def refusing() -> Iterator[str]:
    """The address of a server that refuses access."""

    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/mcp"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("kind", [SseServer, StreamableHttpServer])
async def test_an_error_of_access_does_not_show_the_key_in_the_url(
    kind: type[SseServer | StreamableHttpServer], refusing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_KEY", KEY)
    with pytest.raises(ServerError, match="HTTP status 401") as raised:
        async with connect(kind(url=refusing + "?key={env:SERVICE_KEY}")):
            raise AssertionError("it let us in")
    assert KEY not in str(raised.value) and "\n" not in str(raised.value)
