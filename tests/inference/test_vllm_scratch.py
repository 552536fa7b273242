"""The folder of a vLLM server's temporary files goes with its owner, however the owner ends."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mcp_rl.inference.vllm.scratch import PREFIX, Scratch
from mcp_rl.system.processes.held_folder import LONGEST_SOCKET

OWNER = """
import signal
from mcp_rl.inference.vllm.scratch import Scratch
print(Scratch().path, flush=True)
signal.pause()
"""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place of temporary files, with a path as short as /tmp."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_the_next_start_removes_a_killed_owners_folder(place: Path) -> None:
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    (place / f"{PREFIX}link").symlink_to(elsewhere)
    (place / f"{PREFIX}file").touch()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(place)}
    ) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())
        (left / "a" / "b").mkdir(parents=True)
        with closing(Scratch()) as scratch:
            parents, was_there = {left.parent, scratch.path.parent}, left.is_dir()
            owner.kill()
            owner.wait()
            assert parents == {place} and was_there  # while its owner lived
            with closing(Scratch()) as another:
                assert not left.exists()
                assert scratch.path.is_dir() and another.path.is_dir()
    assert sorted(path.name for path in place.iterdir()) == ["elsewhere", f"{PREFIX}file", f"{PREFIX}link"]


def test_paths_of_sockets_are_short_enough(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = place / ("d" * LONGEST_SOCKET)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with closing(Scratch()) as scratch:
        assert len(os.fsencode(scratch.path / "76803677-e557-4c43-85f8-f21db38295a7")) <= LONGEST_SOCKET
    assert not scratch.path.exists()


def test_temporary_files_go_there_and_compiled_kernels_stay(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with closing(Scratch()) as scratch:
        variables = scratch.environment
    assert variables["TMPDIR"] == str(scratch.path)
    assert Path(variables["TORCHINDUCTOR_CACHE_DIR"]).parent == place
