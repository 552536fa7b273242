"""Train an agent that answers questions from an inbox. docs/email_search.md explains what happens.

    python train_email_search_agent.py build-db [--maildir DIR | --mbox FILE | --csv FILE | --synthetic N]
    python train_email_search_agent.py warm-start
    python train_email_search_agent.py train [OPTIONS OF mcp-rl train]

Each is a door to commands that every server has, and prints them. `warm-start` shows the built-in model a hundred
solved questions, since it never samples a whole answer by itself; `train` begins there unless --base-model, --init or
--config says otherwise. Chat models need no warm start.
"""

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from mcp_rl.cli import main as mcp_rl
from mcp_rl.toolserver.bundled import bundled_root

SERVER = ["--server", "mcp_email_search"]
WARM = Path(".mcp_rl/default/models/email-warm")
EXAMPLES = 100


def run(*words: str) -> None:
    """Print and run a command of mcp-rl; end with its exit code where it fails."""
    print("$ mcp-rl", shlex.join(words), file=sys.stderr, flush=True)
    if code := mcp_rl(list(words)):
        sys.exit(code)


def questions(folder: Path, split: str, count: int | None = None) -> Path:
    """Write the database's questions of one split to a file of scenarios, unmarked, and return the file."""
    every, chosen = folder / "every.jsonl", folder / f"{split}.jsonl"
    run("generate", *SERVER, "--unsolvable", "0", "--without-tools", "0", "--out", str(every))
    rows = [row for row in map(json.loads, every.read_text(encoding="utf-8").splitlines()) if row["split"] == split]
    for row in rows:
        del row["split"]
    chosen.write_text("".join(f"{json.dumps(row)}\n" for row in rows[:count]), encoding="utf-8")
    return chosen


def warm_start() -> None:
    """Play the reference solutions of some training questions, and fine-tune the built-in model on them."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        scenarios, examples = questions(folder, "train", EXAMPLES), folder / "examples.jsonl"
        played = ["--model", "scripted:reference", "--no-greedy", "--samples", "1", "--name", "played"]
        run("evaluate", *SERVER, "--scenarios", str(scenarios), *played, "--output-dir", temporary)
        run("export-trajectories", f"{temporary}/default/evaluations/played", "--out", str(examples))
        run("sft", str(examples), "--base-model", "mcp-rl/tiny", "--epochs", "10", "--name", WARM.name, "--fresh")


def train(options: list[str]) -> None:
    own = any(
        word.partition("=")[0] in ("--base-model", "--init", "--config", "base_model", "init") for word in options
    )
    if not own and not WARM.exists():
        warm_start()
    run("train", *SERVER, *([] if own else ["--init", str(WARM), "--steps", "24"]), *options)


def main(words: list[str]) -> int:
    match words:
        case ["build-db", *options]:
            script = bundled_root() / "servers/python/mcp_email_search/build_db.py"
            return subprocess.run([sys.executable, str(script), *options]).returncode
        case ["warm-start"]:
            warm_start()
        case ["train", *options]:
            train(options)
        case _:
            print((__doc__ or "").split("\n\n")[1], file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
