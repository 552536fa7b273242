"""The paths of copied files and folders: a server is told those of its copies, all others those of the originals."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_BEFORE, _AFTER = r"(?<![\w.-])", r"(?![\w-]|\.\w)"


@dataclass(frozen=True)
class CopiedPaths:
    """Replaces paths in requests to a server, and in its results, wherever they stand in a text."""

    copies: Mapping[str, str] = field(default_factory=dict)
    """The paths of copies by those of the originals."""

    def for_server(self, value: Any) -> Any:
        """Return JSON with the paths of originals replaced by those of the copies."""
        return _replaced(value, self.copies) if self.copies else value

    def from_server(self, value: Any) -> Any:
        """Return JSON with the paths of copies replaced by those of the originals."""
        return _replaced(value, {copy: path for path, copy in self.copies.items()}) if self.copies else value


def _replaced(value: Any, paths: Mapping[str, str]) -> Any:
    longest_first = sorted(paths, key=len, reverse=True)
    found = re.compile(f"{_BEFORE}(?:{'|'.join(map(re.escape, longest_first))}){_AFTER}")

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {replaced(key): replaced(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [replaced(inner) for inner in value]
        return found.sub(lambda match: paths[match[0]], value) if isinstance(value, str) else value

    return replaced(value)
