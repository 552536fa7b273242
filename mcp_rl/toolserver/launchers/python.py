"""`uvx`, `uv tool run` and `pipx run`: the program of a Python package, in the environment made for it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_rl.toolserver.launchers.package import Direct, Package, digest
from mcp_rl.toolserver.launchers.words import named_by

if TYPE_CHECKING:
    from mcp_rl.toolserver.launchers.asking import Asking, Ran
    from mcp_rl.toolserver.launchers.words import Asked

_PROBE = """
import compileall, glob, hashlib, importlib.metadata as found, json, os, re, sys, sysconfig
site, programs = sysconfig.get_paths()["purelib"], sysconfig.get_paths()["scripts"]
if not glob.glob(site + "/[!_]*/__pycache__"):
    compileall.compile_dir(site, quiet=2, workers=os.cpu_count() or 1)
def row(one):
    lines = sorted(",".join(line.split(",")[:2]) for line in (one.read_text("RECORD") or "").splitlines()
        if not re.match(r'"?[.][.]/|[^,]*[.]pyc,|[^,]*[.]dist-info/(INSTALLER|REQUESTED|RECORD|direct_url)', line))
    names = [entry.name for entry in one.entry_points if entry.group in ("console_scripts", "gui_scripts")]
    text = "\\n".join(lines).encode()
    return [one.metadata["Name"], one.version, hashlib.sha256(text).hexdigest() if lines else "", names]
with open(os.environ["MCP_RL_PROBE"], "w") as file:
    json.dump([programs, [row(one) for one in found.distributions(path=[site])]], file)
"""
"""Writes the folder of programs and every package with its version, the hash of its files' hashes, and its programs.
uv does not compile what it installs, and a server would do so at each start in a layer that is thrown away."""
_NO_PACKAGE = re.compile(r"not found in the package registry|No matching distribution|was not found in")
_NO_VERSION = re.compile(r"there is no version of|no versions? of .{1,200}requirements are unsatisfiable", re.DOTALL)
_OTHER_PYTHON = re.compile(r"current Python version \(([\d.]+)\) does not\s+satisfy\s+Python\s?([<>=!~][=\d.,<>]*\d)")
_UNSOLVED = re.compile(
    r"No solution found when resolving[^|]*\|\W*(?:cause: )?(Because [^|]{1,400}?)(?:\.? ?(?:\||$)|, we can)"
)
"""The beginning of uv's reason why the packages that a package needs do not go together."""


async def uv(asked: Asked, asking: Asking) -> Direct | None:
    """Return the command that uv would run."""
    words = [*asked.launcher, *asked.options, "--from", asked.spec, "python", "-c", _PROBE]
    return await _asked(asked, asking, words, {"UV_OFFLINE": "1"})


async def pipx(asked: Asked, asking: Asking) -> Direct | None:
    """Return the command that pipx would run."""
    words = [*asked.launcher, *asked.options, "--spec", asked.spec, "python", "-c", _PROBE]
    return await _asked(asked, asking, words, {})


async def _asked(asked: Asked, asking: Asking, words: list[str], offline: dict[str, str]) -> Direct | None:
    ran = await asking.run_or_offline(words, fetches=asked.spec, also={}, offline=offline)
    if not ran.answer:
        explain(ran, asked, asking)
        return None
    folder, rows = json.loads(ran.answer)
    program = named_by(asked.command) if asked.command == asked.spec else asked.command
    script = Path(folder) / program
    own = next((row for row in rows if _plain(row[0]) == _plain(named_by(asked.spec))), None)
    if not script.is_file():
        if own is not None:
            flag = "--spec" if asked.family == "pipx" else "--from"
            words = [*asked.label.split(), *asked.options, flag, asked.spec, *own[3][:1]]
            instead = f", but {', '.join(own[3])}; type {shlex.join(words)}" if own[3] else " or any other"
            raise asking.refused(f"{own[0]} has no program {program}{instead}")
        return None
    own = own or next((row for row in rows if program in row[3]), None)
    package = None
    if own is not None:
        name, version, record, _ = own
        beside = digest([other[0], other[1], other[2]] for other in rows)
        installed = {_plain(other[0]): other[1] for other in rows}
        package = Package(asked.label, name, version, f"record-sha256-{record}" if record else "", beside, installed)
    return Direct(str(script), asked.args, folder, (script,), package)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _with_python(asked: Asked, wanted: str) -> str:
    """Return the command with a Python that the package takes, as an example; empty where it cannot be told."""
    least = re.search(r"(?:>=|==|~=)\s?(\d[\d.]*\d)", wanted)
    named = {option.partition("=")[0] for option in asked.options} & {"-p", "--python"}
    if least is None or named or asked.family == "pipx":
        return ""
    program = [asked.spec] if asked.command == asked.spec else ["--from", asked.spec, asked.command]
    return f", for example: {shlex.join([*asked.label.split(), '--python', least[1], *asked.options, *program])}"


def explain(ran: Ran, asked: Asked, asking: Asking) -> None:
    """Raise ServerError if the output says what is wrong with the package."""
    name = named_by(asked.spec)
    if not ran.failed:
        return
    if found := _OTHER_PYTHON.search(ran.said):
        example = _with_python(asked, found[2])
        raise asking.refused(
            f"{name} needs Python {found[2]}, but {asked.label} chose {found[1]}; choose another{example}"
        )
    if _NO_VERSION.search(ran.said):
        raise asking.refused(f"the registry has no version of {name} that matches {asked.spec}")
    if _NO_PACKAGE.search(ran.said):
        raise asking.refused(f"{asked.label} finds no package {name} in its registry")
    # Where version 1 of the SDK was tried, the server's own error says more.
    if "mcp<2" not in asked.options and (found := _UNSOLVED.search(ran.said)):
        raise asking.refused(f"{asked.label} cannot install {name}: {' '.join(found[1].split())}")
