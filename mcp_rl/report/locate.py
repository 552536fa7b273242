"""The folder that a name or a path means."""

from difflib import get_close_matches
from pathlib import Path

from mcp_rl.errors import ConfigError

_KINDS = {"models": "model.json", "evaluations": "report.json"}
"""Folder of a project to the file that each of its entries has."""


def find_folder(name: str, project: Path) -> Path:
    """The folder of a run or of an evaluation: a path, or a name in the project's folder.

    Raises ConfigError where there is none, where the name means two, or where the folder is neither.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked(path)
    if path.exists() and path.name in {"report.json", "model.json", "report.html"}:
        return _checked(path.parent)
    if path.exists():
        raise ConfigError(f"{path} is a file; name the folder of a run or of an evaluation.")
    found = [project / kind / name for kind in _KINDS if (project / kind / name).is_dir()] if path.name == name else []
    if len(found) > 1:
        raise ConfigError(
            f"There is a run and an evaluation called {name!r}; name the folder: {found[0]} or {found[1]}."
        )
    if found:
        return _checked(found[0])
    known = sorted(entry.parent.name for kind, file in _KINDS.items() for entry in (project / kind).glob(f"*/{file}"))
    close = get_close_matches(path.name, known, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}." if known else "there is none yet."
    raise ConfigError(f"There is no run or evaluation {name!r} in {project}; {hint}")


def _checked(folder: Path) -> Path:
    if any((folder / file).is_file() for file in _KINDS.values()):
        return folder
    raise ConfigError(
        f"The folder {folder} is neither a run's nor an evaluation's: it holds no model.json and no report.json."
    )
