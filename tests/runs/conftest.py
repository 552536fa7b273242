"""One small run that the tests of commands about runs share. Nothing of it goes on when it is made."""

import shutil
from pathlib import Path

import pytest
from small_run import make_ground, train


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a run needs; runs are kept in `out`."""
    return make_ground(tmp_path_factory.mktemp("ground"))


@pytest.fixture(scope="session")
def run(ground: Path) -> Path:
    """The folder of a run of six steps with checkpoints after each second one. It is only read."""
    return train(ground, "first")


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    """The same run in a project of its own, for tests that spoil it."""
    target = tmp_path / "out" / "default" / "models" / "first"
    shutil.copytree(run, target)
    return target
