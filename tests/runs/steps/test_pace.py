"""Heavy checkpoints are written as rarely as their cost asks for."""

from pathlib import Path

import pytest

from mcp_rl.config import RunConfig
from mcp_rl.runs.steps.pace import CheckpointPace


def checkpoint(folder: Path, size: float) -> Path:
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(int(size))  # takes no room on the disk
    return folder


@pytest.mark.parametrize(
    ("seconds", "step", "every"), [(60.0, 60.0, 20), (1.0, 600.0, 2), (900.0, 60.0, 50), (60.0, 48.0, 25)]
)
def test_writing_takes_a_twentieth_of_the_time(seconds: float, step: float, every: int, tmp_path: Path) -> None:
    config = RunConfig(server=("s",), base_model="Qwen/Qwen2.5-7B-Instruct", train={"method": "full"})  # type: ignore[arg-type]
    pace = CheckpointPace(config)
    assert pace.every == config.train.checkpoint_every == 25 and pace.due(25) and not pace.due(24)
    said = pace.saved(checkpoint(tmp_path / "first", 9.1e10), seconds, step)
    assert pace.every == every and pace.due(every)
    assert (said is None) == (every == 25)
    if said is not None:
        assert f"weighs 91.0 GB and took {seconds:.1f} s" in said and f"one every {every} steps" in said
    assert pace.saved(tmp_path / "first", 10 * seconds, step) is None, "it is measured once"


def test_light_checkpoints_and_what_was_set_keep_their_pace(tmp_path: Path) -> None:
    heavy, light = checkpoint(tmp_path / "heavy", 5e9), checkpoint(tmp_path / "light", 2e7)
    tiny = CheckpointPace(RunConfig(server=("s",)))
    assert tiny.saved(light, 100.0, 1.0) is None and tiny.every == 5
    given = {"server": "s", "base_model": "Qwen/Qwen2.5-7B-Instruct", "train": {"checkpoint_every": 3}}
    own = CheckpointPace(RunConfig.model_validate(given))
    assert own.saved(heavy, 100.0, 1.0) is None and own.every == 3
