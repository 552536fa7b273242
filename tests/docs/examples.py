"""The examples of README.md, CONTRIBUTING.md and docs/: every fenced or indented block, in parts."""

import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHINESE = [ROOT / "README.zh-CN.md", *sorted((ROOT / "docs" / "zh").rglob("*.md"))]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {*CHINESE})]
_PROGRAMS = {
    *("mcp-rl", "python", "make", "pip", "uv", "npx", "curl", "git", "vllm", "torchrun", "accelerate", "source"),
    *("docker", "hf", "ray", "ssh-keygen", "uvx"),
    *(".ci/run", ".venv-vllm/bin/pip"),
}


@dataclass(frozen=True)
class Example:
    """A command, or the text of a file, a snippet or an output."""

    page: str
    line: int
    kind: str
    """command, python, json, jsonl, toml or output."""
    text: str

    @property
    def id(self) -> str:
        """The page and the first line, the key of an example in a table."""
        return f"{self.page}: {self.text.strip().splitlines()[0].strip()}"

    @property
    def words(self) -> list[str]:
        """A command's words, without the comment, the variables before it and the environment's folder."""
        words = shlex.split(self.text.replace("\\\n", " "), comments=True)
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        return [words[0].removeprefix(".venv/bin/"), *words[1:]]


def examples() -> list[Example]:
    """Return all examples of all pages, in order."""
    return [example for page in PAGES for example in examples_of(page)]


def inline_commands() -> list[str]:
    """Return the `mcp-rl` commands with arguments that stand in sentences."""
    found = (re.findall(r"(?<!`)`(mcp-rl [^`…]+ [^`…]+)`(?!`)", page.read_text(encoding="utf-8")) for page in PAGES)
    return sorted({" ".join(command.split()) for commands in found for command in commands})


def examples_of(page: Path) -> Iterator[Example]:
    """Yield the examples of a page."""
    name = page.relative_to(ROOT).as_posix()
    for line, language, text in _blocks(page.read_text(encoding="utf-8")):
        if language in ("python", "json", "jsonl", "toml"):
            yield Example(name, line, language, text)
        elif not any(map(_is_command, text.splitlines())) and (whole := _other(name, line, text)).kind == "python":
            yield whole
        else:
            yield from _parts(name, line, text)


def _blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line number, language ("" for an indented block) and text of every block."""
    fenced = r"^```(?P<language>\w*)\n(?P<inside>.*?)^```$"
    indented = r"(?<=\n\n)(?P<indented>(?: {4}[^\n]*\n|\n+(?= {4}))+)"
    for found in re.finditer(f"{fenced}|{indented}", text, re.MULTILINE | re.DOTALL):
        start = text.count("\n", 0, found.start()) + 1
        yield start, found["language"] or "", found["inside"] or textwrap.dedent(found["indented"] or "")


def _parts(page: str, line: int, text: str) -> Iterator[Example]:
    """Yield each command on its own, and what stands between commands and blank lines in one piece."""
    rest: list[str] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        begin = number
        while lines[number].endswith("\\") and number + 1 < len(lines):
            number += 1
        number += 1
        part = "\n".join(lines[begin:number])
        command = _is_command(part)
        if rest and (command or not part.strip()):
            yield _other(page, line + begin - len(rest), "\n".join(rest))
            rest = []
        if command:
            yield Example(page, line + begin, "command", part.strip())
        elif part.strip() and not (part.strip().startswith("#") and not rest):
            rest += lines[begin:number]
    if rest:
        yield _other(page, line + len(lines) - len(rest), "\n".join(rest))


def _is_command(part: str) -> bool:
    words = re.sub(r"^(?:\w+=\S+ )+", "", part.strip()).split()
    return bool(words) and words[0].removeprefix(".venv/bin/") in _PROGRAMS


def _other(page: str, line: int, text: str) -> Example:
    try:
        json.loads(text)
    except ValueError:
        pass
    else:
        return Example(page, line, "json", text)
    try:
        compiled(text, page)
    except SyntaxError:
        return Example(page, line, "output", text)
    return Example(page, line, "python", text)


def compiled(text: str, page: str) -> None:
    """Compile a module, or a fragment of an asynchronous function. Raises SyntaxError."""
    body = textwrap.indent(textwrap.dedent(text), "    ")
    compile(f"async def fragment():\n{body}\n", page, "exec")
