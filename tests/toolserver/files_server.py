"""A stdio MCP server that keeps everything in files of the folder that it is given, and forgets nothing itself.

Its other tools do what a server in a sandbox should get away with: `run` starts a program, `daemon` leaves one behind,
`hold` opens a file and `held` reads it. With a second argument it creates that file at its start.
"""

import os
import subprocess
import sys
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("files", log_level="WARNING")
folder = Path(sys.argv[1])
held = {}
if len(sys.argv) > 2:
    (folder / sys.argv[2]).write_text("made at the start")


@server.tool()
def write(name: str, text: str) -> str:
    """Write a file."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return "written"


@server.tool()
def read(name: str) -> str:
    """Read a file."""
    try:
        return (folder / name).read_text()
    except OSError as error:
        return f"error: {error.strerror}"


@server.tool()
def delete(name: str) -> str:
    """Delete a file or an empty folder."""
    path = folder / name
    path.rmdir() if path.is_dir() else path.unlink()
    return "deleted"


@server.tool()
def names() -> str:
    """List all files."""
    return " ".join(sorted(str(path.relative_to(folder)) for path in folder.rglob("*")))


@server.tool()
def hold(name: str) -> str:
    """Open a file and keep it open."""
    held[name] = (folder / name).open("r+")
    return "held"


@server.tool()
def run(command: str) -> str:
    """Run a shell line; return its output, errors included."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@server.tool()
def daemon() -> str:
    """Leave a process behind that detached itself twice and knows nothing of its starter."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for descriptor in range(256):
                try:
                    os.close(descriptor)
                except OSError:
                    continue
            os.execve("/bin/sleep", ["sleep", "86399"], {})
        os._exit(0)
    os.wait()
    return "left"


server.run("stdio")
