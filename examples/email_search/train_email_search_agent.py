"""Train an agent that answers questions from an inbox. docs/email_search.md explains what happens.

    python train_email_search_agent.py build-db [--maildir DIR | --mbox FILE | --csv FILE | --synthetic N]
    python train_email_search_agent.py train [OPTIONS OF mcp-rl train]

Each is a door to commands that every server has, and prints them.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path

from mcp_rl.cli import main as mcp_rl
from mcp_rl.toolserver.bundled import bundled_root

SERVER = ["--server", "mcp_email_search"]


def run(*words: str) -> None:
    """Print and run a command of mcp-rl; end with its exit code where it fails."""
    print("$ mcp-rl", shlex.join(words), file=sys.stderr, flush=True)
    if code := mcp_rl(list(words)):
        sys.exit(code)


def questions(folder: Path, split: str) -> Path:
    """Write the database's questions of one split to a file of scenarios, unmarked, and return the file."""
    every, chosen = folder / "every.jsonl", folder / f"{split}.jsonl"
    run("generate", *SERVER, "--unsolvable", "0", "--without-tools", "0", "--out", str(every))
    rows = [row for row in map(json.loads, every.read_text(encoding="utf-8").splitlines()) if row["split"] == split]
    for row in rows:
        del row["split"]
    chosen.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return chosen


def main(words: list[str]) -> int:
    match words:
        case ["build-db", *options]:
            script = bundled_root() / "servers/python/mcp_email_search/build_db.py"
            return subprocess.run([sys.executable, str(script), *options]).returncode
        case ["train", *options]:
            run("train", *SERVER, *([] if "--steps" in options else ["--steps", "40"]), *options)
        case _:
            print((__doc__ or "").split("\n\n")[1], file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
