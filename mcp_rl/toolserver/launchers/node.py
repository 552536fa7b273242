"""`npx`, `npm exec`, `bunx` and `pnpm dlx`: the script of a package from the npm registry, started with node."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.toolserver.launchers.package import Direct, Package, digest
from mcp_rl.toolserver.launchers.words import named_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.toolserver.launchers.asking import Asking, Ran
    from mcp_rl.toolserver.launchers.words import Asked

_SHELL = """#!/bin/sh
if [ "$npm_lifecycle_event" = npx ]; then printf '%s\\0%s' "$PATH" "$2" > "$MCP_RL_PROBE"; exit 0; fi
exec /bin/sh "$@"
"""
"""The shell by which npm starts the program once it has found it: this one writes down what it is given. npm runs a
package's installation scripts by it too."""
_PATH = "require('fs').writeFileSync(process.env.MCP_RL_PROBE, process.env.PATH)"
_HASTE = {"npm_config_fetch_retry_mintimeout": "500", "npm_config_fetch_retry_maxtimeout": "2000"}
"""npm waits ten seconds or more before it asks a registry again that cannot be reached."""
_OFFLINE = {"npm_config_offline": "true"}
_NO_PACKAGE = re.compile(r"E404|code ENOVERSIONS|failed to resolve|GET https?://\S+ - 404|ERR_PNPM_FETCH_404")
_NO_VERSION = re.compile(r"ETARGET|No version matching|NO_MATCHING_VERSION|notarget")
_MISSING = re.compile(r"No matching version found for (\S{1,200}?)\.?(?:\s|$)")
_NO_PROGRAM = re.compile(r"could not determine (executable|bin)")


async def npm(asked: Asked, words: Sequence[str], asking: Asking) -> Direct | None:
    """Return the command that npm would run for these words. It looks among local and global programs too."""
    with tempfile.TemporaryDirectory(prefix="mcp-rl-") as folder:
        shell = Path(folder) / "shell"
        shell.write_text(_SHELL)
        shell.chmod(0o700)
        also = {**_HASTE, **asking.environment, "npm_config_script_shell": str(shell)}
        ran = await asking.run_or_offline(words, fetches=asked.spec, also=also, offline=_OFFLINE)
    path, _, line = ran.answer.partition("\0")
    if not line:
        _explain(ran, asked, asking)
        return None
    program, *args = shlex.split(line)
    return _started(asked, program, args, path)


async def bun_or_pnpm(asked: Asked, asking: Asking) -> Direct | None:
    """Return the command that bunx or pnpm would run."""
    probe = [*asked.options, "-p", asked.spec, "node", "-e", _PATH]
    words = [*asked.launcher, *probe]
    if asked.family == "pnpm":
        words = [*asked.launcher, *asked.options, f"--package={asked.spec}", "node", "-e", _PATH]
    ran = await asking.run_or_offline(words, fetches=asked.spec, also=_HASTE | asking.environment, offline=_OFFLINE)
    if not ran.answer:
        _explain(ran, asked, asking)
        return None
    bin_folder = Path(ran.answer.split(":")[0])
    program, name = asked.command, named_by(asked.spec)
    folder = bin_folder.parent / name
    if program == asked.spec:
        program = _own_program(_fields(folder / "package.json"), name)
    return _started(asked, program, list(asked.args), ran.answer, folder) if program else None


def _own_program(about: dict[str, Any], name: str) -> str:
    """Return the program that a package is started by: its only one, or the one of its own name."""
    programs, own = about.get("bin"), name.rpartition("/")[2]
    if isinstance(programs, dict) and programs:
        return own if own in programs else next(iter(programs)) if len(set(programs.values())) == 1 else ""
    return own if isinstance(programs, str) else ""


def _explain(ran: Ran, asked: Asked, asking: Asking) -> None:
    """Raise ServerError if the output says what is wrong with the package."""
    if not ran.failed:
        return
    name = named_by(asked.spec)
    if _NO_VERSION.search(ran.said):
        needed = _MISSING.search(ran.said)
        if needed is not None and named_by(needed[1]) != name:
            raise asking.refused(f"{name} needs {needed[1]}, and its registry has no such version")
        raise asking.refused(f"the registry has no version of {name} that matches {asked.spec}")
    if _NO_PACKAGE.search(ran.said):
        raise asking.refused(f"{asked.label} finds no package {name} in its registry")
    if _NO_PROGRAM.search(ran.said):
        raise asking.refused(f"the package {asked.spec} has no program of its own name; name one after --package")


def _started(asked: Asked, program: str, args: list[str], path: str, package: Path | None = None) -> Direct | None:
    """Return the command for a program on a PATH; None if it is not a script or a program that we can start.

    `package` is the folder of its package, by default the one that the script lies in.
    """
    found = shutil.which(program, path=path)
    if found is None:
        return None
    script = Path(found).resolve()
    words = _interpreter(script)
    if words is None:
        return None
    command, *options = [*words, str(script)]
    owner = package or next((one for one in script.parents if _fields(one / "package.json").get("version")), None)
    about = _package(owner, asked.label) if owner else None
    return Direct(command, (*options, *args), str(Path(found).parent), (script,), about)


def _interpreter(script: Path) -> list[str] | None:
    """Return the words in front of a script to run it by node without `env`; empty if it is run by itself."""
    with script.open("rb") as file:
        first = file.readline(300)
    if match := re.fullmatch(rb"#!\s*/\S*/env (?:-S\s*)?(node\b[^\n]*)\n", first):
        return shlex.split(match[1].decode(errors="replace"))
    return [] if first.startswith((b"#!", b"\x7fELF", b"\xcf\xfa", b"\xca\xfe")) else None


def _package(folder: Path, launcher: str) -> Package | None:
    """Describe the package in a folder, with the hash that npm's lock file keeps of it."""
    about = _fields(folder / "package.json")
    if not about.get("version"):
        return None
    modules = next((one for one in folder.parents if one.name == "node_modules"), None)
    locked = _fields(modules / ".package-lock.json").get("packages") if modules else None
    integrity, beside = "", ""
    installed: dict[str, str] = {}
    if modules is not None and isinstance(locked, dict):
        entry = locked.get(f"node_modules/{folder.relative_to(modules).as_posix()}")
        integrity = str(entry.get("integrity", "")) if isinstance(entry, dict) else ""
        rows = {place: one for place, one in locked.items() if isinstance(one, dict)}
        beside = digest([place, one.get("version"), one.get("integrity")] for place, one in rows.items())
        installed = {
            place.removeprefix("node_modules/"): str(one.get("version", "")) for place, one in rows.items() if place
        }
    return Package(
        launcher, str(about.get("name", folder.name)), str(about["version"]), integrity or _files_hash(folder), beside,
        installed,
    )  # fmt: skip


def _files_hash(folder: Path) -> str:
    """Return a hash of a package's own files, for one of which no lock file keeps a hash."""
    whole = hashlib.sha256()
    below = (file for file in folder.rglob("*") if "node_modules" not in file.relative_to(folder).parts)
    for file in sorted(file for file in below if file.is_file()):
        whole.update(f"{file.relative_to(folder).as_posix()}\0{file.stat().st_size}\0".encode())
        whole.update(file.read_bytes())
    return f"files-sha256-{whole.hexdigest()}"


def _fields(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
