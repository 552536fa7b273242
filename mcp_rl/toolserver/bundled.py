"""The folder of the bundled servers, plugins and configurations."""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]


@cache
def bundled_root() -> Path:
    """Return the folder that holds `config.json`, `servers/`, `plugins/` and `configs/`.

    In an installed wheel they are inside the package, in a checkout at the root of the repository.
    """
    shipped = _PACKAGE / "bundled"
    return shipped if shipped.is_dir() else _PACKAGE.parent


def server_module(folder: Path, module: str) -> Any:
    """Import `module.py` from the folder of a bundled server, which belongs to no package.

    Its name in `sys.modules` begins with the folder's, so that modules of two servers may be called the same.
    """
    spec = importlib.util.spec_from_file_location(f"{folder.name}_{module}", folder / f"{module}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded
