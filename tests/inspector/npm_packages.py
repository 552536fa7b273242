"""Programs from npm for tests: installed once on a machine, at a pinned version, or a reason to skip."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest


def installed(*packages: str) -> Path:
    """Return the `node_modules` of packages, installed in the user's cache; skip the test if npm or its registry is
    missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mcp_rl" / "packages-of-tests"
    place = cache / hashlib.sha256("\n".join(packages).encode()).hexdigest()[:16]
    if not place.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            _install(Path(folder, "whole"), packages)
            with suppress(OSError):  # another worker was faster
                Path(folder, "whole").rename(place)
    return place / "node_modules"


def _install(folder: Path, packages: tuple[str, ...]) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm")
    folder.mkdir()
    (folder / "package.json").write_text(json.dumps({"private": True}))
    command = [npm, "install", "--no-audit", "--no-fund", "--loglevel=error", "--omit=dev", *packages]
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {', '.join(packages)} within 240 s")
    if run.returncode:
        pytest.skip(f"npm could not install {', '.join(packages)}: {run.stderr.strip()[-300:]}")


def node_version(node: str | Path) -> tuple[int, ...]:
    """Return the version of Node.js, or (0,) if it does not run."""
    try:
        run = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30)
    except OSError:
        return (0,)
    return tuple(int(part) for part in run.stdout.strip().removeprefix("v").split(".")) if not run.returncode else (0,)
