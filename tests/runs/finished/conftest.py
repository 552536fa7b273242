"""A small finished run that the tests of commands about runs share."""

import shutil
from pathlib import Path

import pytest
from small_run import make_ground, train

from mcp_rl.system.seals import SEAL


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base model, a plugin and scenarios; runs are kept in `out`."""
    return make_ground(tmp_path_factory.mktemp("ground"))


@pytest.fixture(scope="session")
def run(ground: Path) -> Path:
    """The folder of a run of six steps with a checkpoint after every second one. Tests only read it."""
    return train(ground, "first")


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    """A copy of the run in its own project, for tests that change it; without digests, as of an earlier version."""
    target = tmp_path / "out" / "default" / "models" / "first"
    shutil.copytree(run, target)
    (target / SEAL).unlink()
    return target
