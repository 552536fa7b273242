"""Install packages with uv: `install.py ENVIRONMENT ARGUMENTS…`, the arguments being those of `pip install`.

uv takes an eighth of pip's processor time, and an environment after the first shares the files of its packages. It does
not read pip's configuration, so the indexes, wheels, constraints and certificates named there are handed on. Where pip
is configured otherwise, or uv cannot be had, pip installs.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HANDED_ON = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}
"""Options of pip's configuration, and the variables that tell uv the same."""
NO_MATTER = {
    *("config-file", "disable-pip-version-check", "no-cache-dir", "no-color", "no-compile", "no-input", "progress-bar"),
    *("quiet", "retries", "root-user-action"),
}
"""Options that change nothing of what is installed."""
SEPARATOR = {"UV_FIND_LINKS": ","}


def variables(configuration: str) -> dict[str, str] | None:
    """Return the variables for uv after the output of `pip config list`; None if uv has no word for an option."""
    found: dict[str, str] = {}
    for scope, option, text in re.findall(r"^(\S+?)\.([\w-]+)=(.*)$", configuration, re.MULTILINE):
        if scope not in (":env:", "global", "install") or option in NO_MATTER:
            continue
        if option not in HANDED_ON:
            return None
        name = HANDED_ON[option]
        found[name] = SEPARATOR.get(name, " ").join(str(ast.literal_eval(text)).split())
    return found


def main(environment: str, *arguments: str) -> int:
    """Install into an environment; returns the exit code."""
    python = Path(environment) / "bin" / "python"
    pip = [str(python), "-m", "pip"]
    configured = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=True).stdout
    chosen = variables(configured)
    if chosen is not None and (uv := uv_beside(python, pip)):
        # Like pip: the best version of all indexes.
        inherited = {"UV_INDEX_STRATEGY": "unsafe-best-match", **chosen, **os.environ}
        command = [str(uv), "pip", "install", "--python", str(python), *arguments]
        return subprocess.run(command, env=inherited, check=False).returncode
    return subprocess.run([*pip, "install", *arguments], check=False).returncode


def uv_beside(python: Path, pip: list[str]) -> Path | None:
    """Return the uv of the environment or of .venv, installed if there is none; None if it cannot be had."""
    own = python.with_name("uv")
    if runs(there := ROOT / ".venv" / "bin" / "uv"):
        return there
    if not runs(own):
        install = [*pip, "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), "uv"]
        subprocess.run(install, capture_output=True, check=False)
    return own if runs(own) else None


def runs(uv: Path) -> bool:
    """Return True for a whole uv that runs on this machine: another process may just be writing it."""
    try:
        return subprocess.run([str(uv), "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
