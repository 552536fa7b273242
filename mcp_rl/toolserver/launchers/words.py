"""Reads the command line of a launcher: its own options, the package, and the server's arguments."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NAMES: tuple[tuple[str, ...], ...] = (
    ("npx",), ("npm", "exec"), ("npm", "x"), ("bunx",), ("bun", "x"), ("pnpm", "dlx"), ("pnpx",),
    ("uvx",), ("uv", "tool", "run"), ("pipx", "run"), ("docker", "run"), ("podman", "run"),
)  # fmt: skip
_VALUED = {
    "npm": "-p --package -c --call -w --workspace --registry --cache --userconfig --prefix --node-options",
    "bun": "-p --package --cwd --env-file --minimum-release-age --registry --ca --cafile",
    "pnpm": "-p --package --reporter --registry --allow-build -C --dir",
    "uv": "--from -w --with --with-editable --with-requirements -c --constraints --constraint --overrides --override "
    "-b --build-constraints --build-constraint --env-file -p --python --index --default-index -i --index-url "
    "--extra-index-url -f --find-links -P --upgrade-package --reinstall-package --index-strategy --keyring-provider "
    "--resolution --prerelease --fork-strategy -C --config-setting --no-build-isolation-package --exclude-newer "
    "--link-mode --refresh-package --no-build-package --no-binary-package --cache-dir --python-preference --color "
    "--directory --project --config-file --allow-insecure-host --torch-backend --python-platform",
    "pipx": "--spec --python --pip-args -i --index-url --with --path",
}
_PLAIN_OF_DOCKER = re.compile(
    r"-[itdPq]+|--(interactive|tty|detach|rm|init|privileged|read-only|no-healthcheck|oom-kill-disable|publish-all"
    r"|sig-proxy|disable-content-trust|quiet|replace|tls-verify)"
)
"""Options of `docker run` without a value."""
_LEAVE = {"-c", "--call", "--node-options", "--env-file", "--directory", "--cwd", "-C", "--dir", "-w", "--workspace"}
"""Options that change more than the package, by family below: such a command is started as it is."""
_BESIDE = {"npm": ("-p", "--package"), "uv": ("-w", "--with")}
"""Options that name further packages, by family."""
_KEPT = {"uv": {"-w", "-c", "-C"}}
"""Those of them that mean something harmless in another family."""


@dataclass(frozen=True)
class Asked:
    """The command line of a launcher in parts."""

    launcher: tuple[str, ...]
    """The words of the launcher itself, such as ("uv", "tool", "run"), the first as it was given."""
    family: str
    """"npm", "bun", "pnpm", "uv", "pipx" or "docker"."""
    options: tuple[str, ...]
    """The launcher's options without those that name the package."""
    spec: str
    """The package that is asked for, such as "server@1.2" or "git+https://…"."""
    command: str
    """The program in the package, as asked for."""
    args: tuple[str, ...]
    """The server's arguments."""
    others: tuple[str, ...] = ()
    """Further packages that are named, to be installed beside it."""

    @property
    def label(self) -> str:
        """The launcher in words."""
        return " ".join((PurePath(self.launcher[0]).name, *self.launcher[1:]))


def read_words(command: str, args: Sequence[str]) -> Asked | None:
    """Return the parts of a launcher's command line; None for any other command, and one that is better left alone."""
    words = (PurePath(command).name, *args)
    known = next((name for name in _NAMES if words[: len(name)] == name), None)
    if known is None:
        return None
    launcher, rest = (command, *known[1:]), list(words[len(known) :])
    family = {"npx": "npm", "bunx": "bun", "pnpx": "pnpm", "uvx": "uv", "podman": "docker"}.get(known[0], known[0])
    found = _read(family, rest)
    if found is None or "{" in found[1]:
        return None
    options, spec, program, left = found
    beside = _BESIDE.get(family, ())
    others = [value for option, value in pairwise(_split(options)) if option in beside]
    return Asked(launcher, family, tuple(options), spec, program, tuple(left), tuple(others))


def _split(options: Iterable[str]) -> list[str]:
    """Return the options with their values as words of their own."""
    return [word for option in options for word in (option.split("=", 1) if option.startswith("--") else [option])]


def _read(family: str, rest: list[str]) -> tuple[list[str], str, str, list[str]] | None:
    options: list[str] = []
    spec = ""
    names = {"uv": ("--from",), "pipx": ("--spec",), "docker": ()}.get(family, ("-p", "--package"))
    while rest and rest[0].startswith("-") and rest[0] != "--":
        option, equals, value = rest.pop(0).partition("=")
        if option in _LEAVE and option not in _KEPT.get(family, ()) and family != "docker":
            return None
        taken = [option + equals + value]
        if not equals and _takes_value(family, option):
            if not rest:
                return None
            value = rest.pop(0)
            taken.append(value)
        if option in names and not spec:
            spec = value
        elif option in names and family != "npm":
            return None  # several packages
        else:
            options += taken
    if rest[:1] == ["--"]:
        rest.pop(0)
    if not rest:
        return None
    program = rest.pop(0)
    if family == "npm" and rest[:1] == ["--"]:
        rest.pop(0)
    return options, spec or program, program, rest


def _takes_value(family: str, option: str) -> bool:
    if family == "docker":
        return not _PLAIN_OF_DOCKER.fullmatch(option) and (option.startswith("--") or len(option) == 2)
    return option in _VALUED[family].split()


def unpinned(text: str) -> str:
    """Return a launcher's command line with each package's name in place of its name and version.

    Other commands, and packages that do not come from a registry, are returned as they are.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    asked = read_words(words[0], words[1:]) if words else None
    if asked is None or asked.family == "docker":
        return text
    for spec in (asked.spec, *asked.others):
        if not re.search(r"://|^[./~]|^\w+:", spec):
            text = text.replace(spec, named_by(spec), 1)
    return text


def named_by(spec: str, splits: Iterable[str] = ("@", "==", ">", "<", "~", "!", "[", " ")) -> str:
    """Return the name in a package's specification, such as "server" in "server@1.2" and "server[extra]>=1"."""
    ends = [spec.index(split, 1) for split in splits if split in spec[1:]]
    return spec[: min(ends)] if ends else spec
