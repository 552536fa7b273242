"""The layer of a sandbox under random changes of several episodes."""

import subprocess
import sys
from pathlib import Path

import pytest

from mcp_rl.toolserver.sandbox.obstacle import obstacle

PLAYING = str(Path(__file__).with_name("turning_layers.py"))


@pytest.mark.skipif(obstacle() is not None, reason=f"no sandbox here: {obstacle()}")
@pytest.mark.parametrize("seed", range(6))
def test_every_episode_finds_its_own_files_again_whatever_the_others_do(seed: int, tmp_path: Path) -> None:
    """With an odd seed, the state at the mark differs from the user's files."""
    words = ["unshare", "-Urmpf", sys.executable, "-I", PLAYING, str(tmp_path), str(seed)]
    played = subprocess.run(words, capture_output=True, text=True, check=False)
    if "unshare" in played.stderr:
        pytest.skip(f"unshare does not work here: {played.stderr[-200:]}")
    assert played.returncode == 0, played.stderr
    assert (tmp_path / "a/b/c").read_text() == "the user's"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "a", "b", "b", "c", "c", "c", "c"]
