"""The folder of a run that a name or a path means."""

import re
from difflib import get_close_matches
from pathlib import Path

from mcp_rl.errors import ConfigError

MODEL_JSON = "model.json"


def find_run(name: str, output_dir: Path, project: str) -> Path:
    """The folder of a run: a path, or a name among the runs of a project.

    Raises ConfigError, one sentence with the nearest right name, where there is none or where it is no run's.
    """
    given = Path(name).expanduser()
    runs = output_dir / project / "models"
    folder = runs / name if given.name == name else given
    if not folder.is_dir() and given.is_dir():
        folder = given
    if (folder / MODEL_JSON).is_file():
        return folder
    if folder.is_dir():
        raise ConfigError(_not_a_run(folder))
    if given.is_file():
        raise ConfigError(f"{given} is a file; name the folder of a run.")
    raise ConfigError(f"There is no run {name!r} in {runs}; {_hint(given.name, output_dir, project)}")


def _not_a_run(folder: Path) -> str:
    if (folder / "report.json").is_file():
        return f"{folder} is an evaluation, and not a training run."
    if (folder / "checkpoints").is_dir():
        return f"The run in {folder} has not begun: it has no {MODEL_JSON} yet."
    return f"The folder {folder} is not a run's: it holds no {MODEL_JSON}."


def _hint(name: str, output_dir: Path, project: str) -> str:
    every = [found.parent for found in sorted(output_dir.glob(f"*/models/*/{MODEL_JSON}"))]
    for found in every:
        if found.name == name:
            return f"there is one in another project: add --project {found.parent.parent.name}."
    known = [found.name for found in every if found.parent.parent.name == project]
    close = get_close_matches(name, known, n=1, cutoff=0.4)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}." if known else "there is none yet."


def beside(folder: Path, name: str) -> Path:
    """Where a run of this name lies beside another. Raises ConfigError where a run cannot be called so."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(f"The name {name!r} cannot be a run's: use letters, digits, points, dashes and underscores.")
    return folder.parent / name
