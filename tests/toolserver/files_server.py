"""A stdio MCP server that keeps everything in files of the folder that it is given, and forgets nothing itself.

Its other tools do what a server in a sandbox should get away with: `run` starts a program, `daemon` leaves one behind,
`hold` opens a file and `held` reads it. With a second argument it creates that file at its start.
"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scenarios"))
from by_hand import Refused, serve, tool

folder = Path(sys.argv[1])
held = {}
if len(sys.argv) > 2:
    (folder / sys.argv[2]).write_text("made at the start")


def write(name: str, text: str) -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return "written"


def read(name: str) -> str:
    try:
        return (folder / name).read_text()
    except OSError as error:
        return f"error: {error.strerror}"


def delete(name: str) -> str:
    path = folder / name
    path.rmdir() if path.is_dir() else path.unlink()
    return "deleted"


def names() -> str:
    return " ".join(sorted(str(path.relative_to(folder)) for path in folder.rglob("*")))


def hold(name: str) -> str:
    held[name] = (folder / name).open("r+")
    return "held"


def run(command: str) -> str:
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def daemon() -> str:
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


TOOLS = {
    write: tool("write", "Write a file.", name="string", text="string"),
    read: tool("read", "Read a file.", name="string"),
    delete: tool("delete", "Delete a file or an empty folder.", name="string"),
    names: tool("names", "List all files."),
    hold: tool("hold", "Open a file and keep it open.", name="string"),
    run: tool("run", "Run a shell line; return its output, errors included.", command="string"),
    daemon: tool("daemon", "Leave a process behind that detached itself twice and knows nothing of its starter."),
}
CALLS = {called.__name__: called for called in TOOLS}


def call(name, arguments):
    try:
        return CALLS[name](**arguments)
    except Exception as error:
        raise Refused(f"Error executing tool {name}: {error}") from error


serve("files", list(TOOLS.values()), call)
