"""The folder of the bundled servers, plugins and configurations."""

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@cache
def bundled_root() -> Path:
    """Return the folder that holds `config.json`, `servers/`, `plugins/` and `configs/`.

    In an installed wheel they are inside the package, in a checkout at the root of the repository.
    """
    shipped = _PACKAGE / "bundled"
    return shipped if shipped.is_dir() else _PACKAGE.parent
