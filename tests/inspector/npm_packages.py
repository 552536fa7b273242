"""Programs from npm for tests: installed at a pinned version into a temporary folder, or a reason to skip."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest


def installed(folder: Path, *packages: str) -> Path:
    """Install packages and return their `node_modules`; skip the test if npm or its registry is missing."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm")
    (folder / "package.json").write_text(json.dumps({"private": True}))
    command = [npm, "install", "--no-audit", "--no-fund", "--loglevel=error", "--omit=dev", *packages]
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {', '.join(packages)} within 240 s")
    if run.returncode:
        pytest.skip(f"npm could not install {', '.join(packages)}: {run.stderr.strip()[-300:]}")
    return folder / "node_modules"


def node_version(node: str | Path) -> tuple[int, ...]:
    """Return the version of Node.js, or (0,) if it does not run."""
    try:
        run = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30)
    except OSError:
        return (0,)
    return tuple(int(part) for part in run.stdout.strip().removeprefix("v").split(".")) if not run.returncode else (0,)
