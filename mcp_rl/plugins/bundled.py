"""Where the servers, plugins and configurations that come with this project lie."""

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@cache
def bundled_root() -> Path:
    """The folder that holds `servers/`, `plugins/` and `configs/`.

    In an installed wheel they lie inside the package, in a checkout at the root of the repository.
    """
    shipped = _PACKAGE / "bundled"
    return shipped if shipped.is_dir() else _PACKAGE.parent
