"""Ten servers with nothing declared: their tasks with the proofs of these, and what training reaches on each.

    python -m benchmarks.strangers [--only NAME ...] [--seeds 0 1 2] [--part tasks train] \
        [--out benchmarks/results/strangers.json]

Two bundled servers are started by their command, so that no plugin declares anything or words their requests. npx and
uvx download the others. Each sees a home, a folder of 30 mixed files, a repository of 16 commits and a site on
loopback, all made here in a scratch folder. `tasks` makes 200 tasks of all levels and checks them (`generate --check`);
`train` runs `mcp-rl train` with its defaults, or with `--steps`; then the base and the trained model play 90 new tasks
of the levels above told, on which it was not trained. Both begin without what was measured of the server before, and
afterwards the files must have the hashes that they had. `--out` is written after each of them and keeps other servers
and seeds.
"""

import argparse
import functools
import hashlib
import http.server
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("tasks", "train")
_WORDS = [
    *("apple", "river", "lantern", "copper", "garden", "window", "pepper", "orange", "harbour", "ladder", "marble"),
    *("forest", "candle", "bridge", "anchor", "velvet", "saddle", "meadow", "pocket", "thunder", "whistle", "basket"),
]


def text(chance: random.Random, lines: int) -> str:
    """Return so many lines of four to nine words."""
    return "".join(" ".join(chance.choices(_WORDS, k=chance.randint(4, 9))).capitalize() + ".\n" for _ in range(lines))


def folder_of_files(root: Path) -> None:
    """Write 30 files of five kinds into four folders."""
    chance = random.Random(1)
    for number in range(30):
        place = root / ("notes", "reports", "drafts", "data")[number % 4]
        place.mkdir(parents=True, exist_ok=True)
        name, kind = f"{chance.choice(_WORDS)}{number}", ("txt", "md", "json", "csv", "log")[number % 5]
        content = {
            "json": json.dumps({"name": name, "count": number, "tags": chance.sample(_WORDS, 2)}, indent=2) + "\n",
            "csv": "item,count\n" + "".join(f"{chance.choice(_WORDS)},{chance.randint(1, 90)}\n" for _ in range(5)),
            "md": f"# {name}\n\n{text(chance, 4)}",
        }.get(kind, text(chance, chance.randint(1, 12)))
        (place / f"{name}.{kind}").write_text(content)


def repository(root: Path) -> None:
    """Make a git repository of 16 commits by three people, with three branches."""
    chance = random.Random(2)
    root.mkdir(parents=True)

    def git(*words: str, number: int = 0) -> None:
        name = ("Ada", "Omar", "Ines")[chance.randrange(3)]
        when = f"2026-03-{number + 1:02}T12:00:00"
        identity = {
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", name), ("EMAIL", f"{name.lower()}@example.org"), ("DATE", when))
        }
        subprocess.run(["git", *words], cwd=root, env=os.environ | identity, check=True)

    git("init", "--quiet", "--initial-branch", "main")
    for number in range(16):
        names = ("readme.md", "main.py", "notes.txt", "setup.cfg", "tests.py", "changes.md")
        for name in chance.sample(names, chance.randint(1, 3)):
            with (root / name).open("a") as file:
                file.write(text(chance, chance.randint(1, 4)))
        git("add", ".")
        git("commit", "--quiet", "--message", f"Mention {_WORDS[number]}", number=number)
        if number in (5, 9):
            git("branch", f"before-{_WORDS[number]}")


_FETCH = "mcp-server-fetch --ignore-robots-txt --allow-private-ips"


def site(root: Path) -> None:
    """Write a site of ten short pages that link to each other."""
    chance = random.Random(3)
    names = [f"{word}.html" for word in _WORDS[:9]]
    links = "".join(f'<li><a href="/{name}">{name.removesuffix(".html").capitalize()}</a></li>' for name in names)
    pages = {"index.html": f"<ul>{links}</ul>"}
    for name in names:
        rows = "".join(f"<tr><td>{word}</td><td>{chance.randint(2, 90)}</td></tr>" for word in chance.sample(_WORDS, 3))
        pages[name] = f"<p>{text(chance, 2)}</p><table><tr><th>item</th><th>price</th></tr>{rows}</table>"
    root.mkdir(parents=True)
    for name, body in pages.items():
        title = name.removesuffix(".html").capitalize()
        (root / name).write_text(f"<html><head><title>{title}</title></head><body><h1>{title}</h1>{body}</body></html>")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def served(root: Path) -> Iterator[str]:
    """Serve a folder on loopback; yield its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(root))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()


@dataclass(frozen=True)
class World:
    """The user's files, and the folder in which the commands run."""

    root: Path
    page: str

    def servers(self) -> dict[str, list[str]]:
        """Return the words after `--server` for each name."""
        uvx, python = str(Path(sys.executable).with_name("uvx")), sys.executable
        npm = "npx -y @modelcontextprotocol/"
        return {
            "mcp_calculator": [f"{python} {ROOT}/servers/python/mcp_calculator/server.py --transport stdio"],
            "mcp_notes": [f"node {ROOT}/servers/node/mcp_notes/mcp_notes.mjs --transport stdio"],
            "server-everything": [f"{npm}server-everything stdio"],
            "server-filesystem": [f"{npm}server-filesystem {self.root}/files"],
            "server-memory": [f"{npm}server-memory"],
            "server-sequential-thinking": [f"{npm}server-sequential-thinking"],
            "mcp-server-git": [f"{uvx} mcp-server-git --repository {self.root}/repository"],
            "mcp-server-time": [f"{uvx} mcp-server-time"],
            "mcp-server-sqlite": [f"{uvx} --with mcp<2 mcp-server-sqlite --db-path {self.root}/data.db"],
            "mcp-server-fetch": [
                f"{uvx} mcp-server-fetch --ignore-robots-txt --allow-private-ips",
                "--start",
                self.page,
            ],
        }

    def hashes(self) -> str:
        """Return a hash of the names and contents of all of the user's files."""
        total = hashlib.sha256()
        for path in sorted(self.root.rglob("*")):
            if path.is_file():
                total.update(f"{path.relative_to(self.root)}\0".encode() + path.read_bytes() + b"\0")
        return total.hexdigest()


@contextmanager
def world() -> Iterator[World]:
    """Make the user's files; serve the site."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "user"
        folder_of_files(root / "files")
        repository(root / "repository")
        site(root / "site")
        with served(root / "site") as page:
            yield World(root, page)


class Failed(Exception):
    """A command that ended without a result."""


def run(words: list[str], there: World, *, above: bool = False) -> tuple[dict[str, Any], float, list[str]]:
    """Run mcp-rl in an empty folder without cached measurements; return its object, its seconds and its tasks. `above`:
    a trained model then plays tasks above told.

    Raises Failed for a command that ends without a result.
    """
    before = there.hashes()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "UV_CACHE_DIR": _uv_cache()}
        began = time.perf_counter()
        command = [sys.executable, "-m", "mcp_rl", *words, "--json"]
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        seconds = time.perf_counter() - began
        if done.returncode not in (0, 1) or not done.stdout.strip():
            raise Failed(f"exit code {done.returncode}")
        answer = json.loads(done.stdout.splitlines()[-1])
        tasks = folder / "tasks.jsonl"
        lines = tasks.read_text().splitlines() if tasks.exists() else []
        if lines:
            check = [sys.executable, "-m", "mcp_rl", *words[:-2], "--check", str(tasks)]
            answer["check"] = subprocess.run(check, cwd=folder, env=environment, check=False).returncode
        if "run_dir" in answer:
            answer["report"] = json.loads((folder / answer["run_dir"] / "report.json").read_text())
        if "run_dir" in answer and above:
            answer["above_told"] = _above_told(words[words.index("--server") :], answer["run_dir"], folder, environment)
    if there.hashes() != before:
        raise SystemExit(f"{shlex.join(command)} changed the user's files")
    return answer, seconds, lines


def _above_told(words: list[str], trained: str, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Return the success of the base and of a trained model on new tasks of each level above told."""
    server = words[: words.index("--seed")]
    program, tasks = [sys.executable, "-m", "mcp_rl"], "above.jsonl"
    levels = "looked-up=0.34,worked-out=0.33,brought-about=0.33"
    shares = ["--levels", levels, "--unsolvable", "0", "--without-tools", "0"]
    make = ["generate", *server, *shares, "--count", "90", "--seed", "100", "--out", tasks]
    if subprocess.run([*program, *make], cwd=folder, env=environment, check=False).returncode:
        return {}
    play = ["evaluate", *server, "--scenarios", tasks, "--samples", "1", "--model", "mcp-rl/tiny", "--model", trained]
    done = subprocess.run(
        [*program, *play, "--json"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    results = [model["result"] for model in json.loads(done.stdout.splitlines()[-1])["models"]]
    only = json.loads((folder / tasks).read_text().splitlines()[0])["level"]  # told apart only where there are several
    return {
        moment: result["by_level"] or {only: {"scenarios": result["scenarios"], **result["sampled"]}}
        for moment, result in zip(("before", "after"), results, strict=True)
    }


@functools.cache
def _uv_cache() -> str:
    asked = [str(Path(sys.executable).with_name("uv")), "cache", "dir"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def tasks(words: list[str], there: World, seed: int) -> dict[str, Any]:
    """Make 200 tasks; return their number by level, the shares of the proofs, and ten requests of each level."""
    options = ["--levels", "mixed", "--count", "200", "--seed", str(seed), "--out", "tasks.jsonl"]
    summary, seconds, lines = run(["generate", "--server", *words, *options], there)
    scenarios = [json.loads(line) for line in lines]
    names = {name.lower() for name in [*summary["tools"], *summary["unused_tools"]] if re.search(r"[_-]", name)}
    above = [s for s in scenarios if s.get("level", "spelled") != "spelled"]
    named = [s for s in above if any(name in s["task_description"].lower() for name in names)]
    levels = {
        level: [s["task_description"] for s in scenarios if s.get("level", "spelled") == level] for level in LEVELS
    }
    chance = random.Random(seed)
    return {
        "seconds": round(seconds, 1),
        "scenarios": len(scenarios),
        "levels": {level: len(requests) for level, requests in levels.items()},
        "naming_a_tool_above_spelled": len(named),
        "proofs": summary.get("proofs"),
        "check": summary.get("check"),
        "requests": {level: chance.sample(found, min(10, len(found))) for level, found in levels.items()},
    }


LEVELS = ("spelled", "told", "looked-up", "worked-out", "brought-about")


def train(words: list[str], there: World, seed: int, steps: int | None, *, above: bool) -> dict[str, Any]:
    """Train with the defaults; return success before and after, and the minutes from the command to the table."""
    more = [] if steps is None else ["--steps", str(steps)]
    answer, seconds, _ = run(["train", "--server", *words, "--seed", str(seed), *more], there, above=above)
    found: dict[str, Any] = {"minutes": round(seconds / 60, 2), "steps": answer["step"]}
    if above:
        found["above_told"] = answer["above_told"]
    for moment in ("before", "after"):
        details = answer["report"]["details"][moment]
        for kind in ("greedy", "sampled"):
            if played := details.get(kind):
                values = (played["success"], *played["ci95"])
                found[f"{kind}_{moment}"] = [round(value, 3) for value in values]
        found[f"levels_{moment}"] = details.get("by_level")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--steps", type=int, help="steps of a training, in place of the default")
    parser.add_argument("--no-above", action="store_true", help="leave the levels above told out after a training")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    for seed in options.seeds:
        with world() as there:
            commands = there.servers()
            if unknown := set(options.only) - set(commands):
                parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(commands)}")
            for name in options.only or commands:
                for part in options.part:
                    training = functools.partial(train, steps=options.steps, above=not options.no_above)
                    measure = {"tasks": tasks, "train": training}[part]
                    try:
                        figures = measure(commands[name], there, seed)
                    except Failed as failed:
                        figures = {"failed": str(failed)}
                    results.setdefault(name, {}).setdefault(part, {})[str(seed)] = figures
                    print(name, part, seed, json.dumps(figures), flush=True)
                    if options.out:
                        options.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
