"""`Package`, the origin of a server's code, and `Direct`, the command that starts it without its launcher."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Package:
    """A package or an image from which a launcher starts a server."""

    launcher: str
    """The launcher's words, such as "npx" or "uv tool run"."""
    name: str
    version: str
    integrity: str
    """A hash of the package with its kind in front: npm's "sha512-…", "record-sha256-…" of a Python package's files,
    "sha256:…" of an image; empty if unknown."""
    dependencies: str = ""
    """Hash of the names, versions and hashes of all packages installed with it; empty if unknown."""
    installed: Mapping[str, str] = field(default_factory=dict)
    """The name and the version of each of these packages, itself among them; empty if unknown."""

    @property
    def label(self) -> str:
        """The name and the version."""
        return f"{self.name} {self.version}".strip()

    @property
    def pinned(self) -> str:
        """The name and the version as the launcher takes them."""
        if self.launcher.startswith(("docker", "podman")):
            return f"{self.name}@{self.integrity}"
        return f"{self.name}{'==' if self.launcher.startswith('pipx') else '@'}{self.version}"

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Package:
        """Read what `dataclasses.asdict` made of a package; a field that is missing is empty."""
        texts = {name: str(fields.get(name, "")) for name in cls.__dataclass_fields__ if name != "installed"}
        installed = fields.get("installed")
        return cls(**texts, installed=dict(installed) if isinstance(installed, dict) else {})


@dataclass(frozen=True)
class Direct:
    """A server's own command, found by asking its launcher."""

    command: str
    args: tuple[str, ...]
    folder: str
    """The folder of the package's programs, which the launcher puts in front of the PATH; empty if there is none."""
    files: tuple[Path, ...]
    """The files without which the command does not start."""
    package: Package | None


def digest(parts: Iterable[Any]) -> str:
    """Return a short hash of JSON values, whatever their order."""
    lines = sorted(json.dumps(part, sort_keys=True) for part in parts)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
