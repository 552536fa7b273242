"""Type the commands of README.md from top to bottom in an empty folder, and print each one's exit code and seconds.

    python tests/walk_readme.py                     # builds the wheel and installs it into a new environment first
    python tests/walk_readme.py --python ENV/bin/python     # walks with an environment in which mcp-rl is installed
    python tests/walk_readme.py --seconds 120               # types what there is time for, and says what was left out

The commands are read from README.md itself. `SKIPPED` names those that cannot run everywhere, `SMALLER` the words that
keep the others short. The exit code is 1 if a command fails, and 2 if an entry of a table fits no command any more.
"""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urljoin

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.docs.examples import Example, examples  # noqa: E402

SKIPPED = {
    "make test": "runs the tests of a checkout",
    'mcp-rl train --server "npx': "needs npm",
    "mcp-rl train --server https://example.org/mcp": "stands for a server of the reader's own",
    "mcp-rl train --server-config": "needs the reader's own client file",
    "mcp-rl doctor --base-model": "needs the model hub",
    "mcp-rl train --server mcp_calculator --base-model": "needs the model hub",
    "mcp-rl train --server mcp_calculator --backend ray": "needs Ray",
    "mcp-rl train --server mcp_calculator mirror=s3://bucket": "needs S3",
}
"""Beginnings of commands that are not typed: the reason."""
_TINY = "--steps 4 scenarios.val=16 rollout.groups_per_step=4 rollout.group_size=4 evaluation.samples=1"
SMALLER = {
    "make train": ("make train", f"python -m mcp_rl.train --server mcp_calculator {_TINY} scenarios.count=48"),
    "mcp-rl train --server mcp_calculator --scenarios": ("--name tasks", f"--name tasks {_TINY}"),
    "mcp-rl evaluate": ("# ", "--count 16 --samples 1 # "),
    "mcp-rl watch mcp_calculator-tiny": ("# ", "--port 0 # "),
    "mcp-rl serve mcp_calculator-tiny": ("# ", "--port 0 # "),
}
"""Beginnings of commands that would take minutes, or a port that may be taken: (words, the words typed in their place).

`make train` needs a checkout: the command of its recipe is typed instead.
"""
_ASKED = {"mcp-rl serve ": "/v1/models", "mcp-rl watch ": ""}
"""Beginnings of commands that serve until Ctrl-C: what is asked for at the address that they print."""
_LIMIT = 300.0
"""Seconds for one command."""
_TIME_UP = 124


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--python", type=Path, help="the Python of an environment in which mcp-rl is installed")
    parser.add_argument("--keep", type=Path, help="a new folder to walk in, which is kept; by default a temporary one")
    parser.add_argument("--seconds", type=float, help="the time for the walk; the first command is always typed")
    options = parser.parse_args(arguments)
    commands = readme_commands()
    if stale := stale_entries(commands):
        print(f"README.md has no command that begins with: {'; '.join(stale)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        python = options.python.absolute() if options.python else _installed(Path(temporary))
        folder = options.keep or Path(temporary, "walk")
        folder.mkdir(parents=True)
        return walk(commands, python, folder, seconds=options.seconds)


def readme_commands() -> list[Example]:
    """Return the commands of README.md, in order."""
    return [example for example in examples() if example.page == "README.md" and example.kind == "command"]


def stale_entries(commands: Sequence[Example]) -> list[str]:
    """Return the entries of the tables that no command begins with, or whose words none holds."""
    unused = [start for start in SKIPPED if not any(_begins(example, start) for example in commands)]
    for start, (words, _) in SMALLER.items():
        if not any(_begins(example, start) and (words == "# " or words in example.text) for example in commands):
            unused.append(start)
    return unused


def walk(commands: Sequence[Example], python: Path, folder: Path, *, seconds: float | None = None) -> int:
    """Type the commands one after the other; return 1 if one of them failed, else 0.

    Where `seconds` are over, the command under way is ended, and it and the later ones count as left out.
    """
    end = time.monotonic() + seconds if seconds is not None else None
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MCP_RL_", "PYTHON"))}
    environment = kept | {"PATH": f"{python.parent}{os.pathsep}{kept['PATH']}", "HOME": str(folder)}
    failed = typed = left_out = 0
    for example in commands:
        if reason := next((why for start, why in SKIPPED.items() if _begins(example, start)), None):
            print(f"   -         -  {example.text}\n                skipped: {reason}")
            continue
        command = _shorter(example)
        began = time.monotonic()
        limit = _LIMIT if end is None or not typed else min(_LIMIT, end - began)
        status, output = _typed(command, folder, environment, limit) if limit > 1 else (_TIME_UP, "")
        if status == _TIME_UP and limit < _LIMIT:
            left_out += 1
            print(f"   -         -  {command}\n                left out: the time is up")
            continue
        typed += 1
        failed += status != 0
        print(f"{status:4d}  {time.monotonic() - began:6.1f} s  {command}", flush=True)
        if status:
            print("".join(f"                {line}\n" for line in output.splitlines()[-20:]), flush=True)
    print(f"{failed} of {typed} commands failed." if failed else f"All {typed} commands that were typed ended well.")
    if left_out:
        print(f"{left_out} commands were left out; without --seconds, all are typed.")
    return min(failed, 1)


def _begins(example: Example, start: str) -> bool:
    return example.text.startswith(start) and not example.text[len(start) :][:1].isalnum()


def _shorter(example: Example) -> str:
    command = " ".join(example.text.split())
    for start, (words, instead) in SMALLER.items():
        if _begins(example, start):
            if words == "# " and words not in command:
                command += " # "
            command = command.replace(words, instead, 1)
    return command.partition(" # ")[0].strip()


def _typed(command: str, folder: Path, environment: dict[str, str], limit: float) -> tuple[int, str]:
    """Run a command; a server gets a question and then Ctrl-C. Return the exit code and the output.

    A command that takes longer than `limit` seconds is ended, and its exit code is _TIME_UP.
    """
    end = time.monotonic() + limit
    asked = next((path for name, path in _ASKED.items() if command.startswith(name)), None)
    log = folder / "walk.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            shlex.split(command),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            answered = asked is None or _answers(log, process, end, asked)
            if asked is not None:
                process.send_signal(signal.SIGINT)
            status = process.wait(max(0.0, end - time.monotonic())) or int(not answered)
        except subprocess.TimeoutExpired:
            status = _TIME_UP
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return status, log.read_text(encoding="utf-8", errors="replace")


def _answers(log: Path, process: subprocess.Popen[bytes], end: float, path: str) -> bool:
    """Wait until the server has printed its address; return True if it answers there, at `path`, before `end`."""
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(r"http://127\.0\.0\.1:\d+(?:/\S+)?", log.read_text(encoding="utf-8", errors="replace")):
            with urllib.request.urlopen(urljoin(found[0], path), timeout=60) as reply:
                return bool(reply.status == 200)
        time.sleep(0.2)
    return False


def _installed(folder: Path) -> Path:
    """Build the wheel and install it into a new environment; return that environment's Python."""

    def run(*words: str | Path) -> None:
        subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)

    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder / "dist", ROOT)
    run(sys.executable, "-m", "venv", folder / "environment")
    python = folder / "environment" / "bin" / "python"
    wheel = next((folder / "dist").glob("*.whl"))
    run(python, "-m", "pip", "install", "--constraint", ROOT / "constraints.txt", wheel)
    return python


if __name__ == "__main__":
    sys.exit(main())
