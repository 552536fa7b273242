"""`docker run` and `podman run`: started as they are, since the container is the server; only the image is sought."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_rl.toolserver.launchers.package import Package

if TYPE_CHECKING:
    from mcp_rl.toolserver.launchers.asking import Asking
    from mcp_rl.toolserver.launchers.words import Asked

_FORMAT = "{{if .RepoDigests}}{{index .RepoDigests 0}}{{else}}{{.Id}}{{end}}"


async def image(asked: Asked, asking: Asking) -> Package | None:
    """Return the image with its digest; pull it if it is not here. None if the container service does not answer."""
    client = asked.launcher[0]
    ask = ["/bin/sh", "-c", '"$0" image inspect --format "$1" "$2" > "$MCP_RL_PROBE"', client, _FORMAT, asked.spec]
    with tempfile.TemporaryDirectory(prefix="mcp-rl-") as folder:
        scratch = Path(folder)
        found = await asking.run(ask, fetches=asked.spec, scratch=scratch)
        if found.failed and "No such image" in found.said:
            await asking.run([client, "pull", "--quiet", asked.spec], fetches=asked.spec, scratch=scratch)
            found = await asking.run(ask, fetches=asked.spec, scratch=scratch)
    if found.failed or not found.answer.strip():
        return None
    name, _, tag = asked.spec.partition("@")[0].rpartition(":")
    name, tag = (name, tag) if name and "/" not in tag else (asked.spec.partition("@")[0], "latest")
    return Package(asked.label, name, tag, found.answer.strip().rpartition("@")[2])
