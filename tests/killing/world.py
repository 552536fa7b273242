"""The tool server and the judge of the kill tests' runs, in a process that outlives them.

`python -m tests.killing.world FOLDER` serves the bundled calculator over SSE at /sse, and a judge at /v1 whose scores
follow from the text that it is shown. If FOLDER/armed.json holds {"pid", "kind": "tool" or "judge", "count"}, that
process is killed in the middle of its count-th call of the kind. The first line on stdout is the address; it ends with
its standard input.
"""

import hashlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks.judge_server import completion, fenced, scores
from benchmarks.loopback import serving

SERVER = Path(__file__).parents[2] / "servers" / "python" / "mcp_calculator"


class Trigger:
    """Kills the process in the file at the count-th call of the file's kind."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "armed.json"
        self._calls = 0
        self._armed_for: Any = None

    def pull(self, kind: str) -> None:
        try:
            armed = json.loads(self._file.read_bytes())
        except (OSError, ValueError):
            return
        if armed["kind"] != kind:
            return
        if armed["pid"] != self._armed_for:
            self._calls, self._armed_for = 0, armed["pid"]
        self._calls += 1
        if self._calls == armed["count"]:
            self._file.unlink()
            os.kill(armed["pid"], signal.SIGKILL)


def main() -> None:
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(SERVER))
    from server import Calculator  # type: ignore[import-not-found]

    trigger = Trigger(folder)

    class Watched(Calculator):  # type: ignore[misc]
        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            trigger.pull("tool")
            return await super().call_tool(name, arguments, context)

    async def judge(request: Request) -> JSONResponse:
        trigger.pull("judge")
        prompt = (await request.json())["messages"][1]["content"]
        values = {id: hashlib.sha256(text.encode()).digest()[0] % 11 / 10 for id, text in fenced(prompt).items()}
        return completion(scores(values))

    app = Watched("mcp_calculator", version="1.0.0", log_level="ERROR", subscriptions=False).sse_app()
    app.routes.append(Route("/v1/chat/completions", judge, methods=["POST"]))
    with serving(app) as address:
        print(address, flush=True)
        threading.Thread(target=sys.stdin.read).run()


if __name__ == "__main__":
    main()
