"""Find the folder of a run by name or path."""

import re
from difflib import get_close_matches
from pathlib import Path

from mcp_rl.errors import ConfigError

MODEL_JSON = "model.json"


def find_run(name: str, output_dir: Path, project: str, *, begun: bool = True) -> Path:
    """Return the folder of a run, given as a path or as a name in a project.

    `begun` False also takes a run that is being prepared and has no model.json yet. Raises ConfigError, one sentence
    with the nearest known name, if there is no such folder or it is not a run.
    """
    given = Path(name).expanduser()
    runs = output_dir / project / "models"
    folder = runs / name if given.name == name else given
    if not folder.is_dir() and given.is_dir():
        folder = given
    if (folder / MODEL_JSON).is_file() or (not begun and (folder / "checkpoints").is_dir()):
        return folder
    if folder.is_dir():
        raise ConfigError(_not_a_run(folder))
    if given.is_file():
        raise ConfigError(f"{given} is a file; name the folder of a run.")
    raise ConfigError(f"There is no run {name!r} in {runs}; {_hint(given.name, output_dir, project)}")


def _not_a_run(folder: Path) -> str:
    if (folder / "report.json").is_file():
        return f"{folder} is an evaluation, not a training run."
    if (folder / "checkpoints").is_dir():
        return f"The run in {folder} has not begun: it has no {MODEL_JSON} yet."
    return f"{folder} is not the folder of a run: it holds no {MODEL_JSON}."


def _hint(name: str, output_dir: Path, project: str) -> str:
    every = [found.parent for found in sorted(output_dir.glob(f"*/models/*/{MODEL_JSON}"))]
    for found in every:
        if found.name == name:
            return f"there is one in another project: add --project {found.parent.parent.name}."
    known = [found.name for found in every if found.parent.parent.name == project]
    close = get_close_matches(name, known, n=1, cutoff=0.4)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}." if known else "there is none yet."


def beside(folder: Path, name: str) -> Path:
    """Return the folder of a run of this name beside another. Raises ConfigError if the name is not valid."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(f"{name!r} cannot name a run: use letters, digits, points, dashes and underscores.")
    return folder.parent / name
