"""Python functions as a tool server: `python_tools` describes it, and this file, run as a program, is it."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import UserError
from mcp_rl.scenario import StdioServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_READ_ONLY = "--read-only"
_serving = False
"""True in the server's process, which imports the file: there a server that the file describes must not start."""


def python_tools(*functions: Callable[..., Any], read_only: bool = False) -> StdioServer:
    """Return a server whose tools are Python functions, defined at the top level of one file.

    A function's name, docstring and type hints become its tool. The server is a process that imports the file, so what
    only the program should do stands under `if __name__ == "__main__":`. With `read_only`, which promises that no
    function changes anything, all episodes share one process; else each has its own. Raises UserError for a function
    that the process could not import.
    """
    files = {_file_of(function) for function in functions}
    if len(files) != 1:
        raise UserError(f"python_tools needs functions of one file, not of {len(files)}.")
    if _serving:
        return StdioServer(command=f'a guard is missing in {files.pop()}: if __name__ == "__main__":')
    flag = [_READ_ONLY] if read_only else []
    names = [function.__name__ for function in functions]
    return StdioServer(command="{python}", args=("-m", __name__, *flag, str(files.pop()), *names))


def _file_of(function: Callable[..., Any]) -> Path:
    file = inspect.unwrap(function).__code__.co_filename if inspect.isfunction(function) else ""
    if not Path(file).is_file() or function.__qualname__ != function.__name__ or function.__name__ == "<lambda>":
        raise UserError(f"{function!r} cannot be a tool: it must be a function at the top level of a .py file.")
    return Path(file).resolve()


def _serve(arguments: Sequence[str]) -> None:
    """Serve the functions that the command line names, on stdio."""
    from mcp.server import MCPServer
    from mcp.types import ToolAnnotations

    read_only = arguments[0] == _READ_ONLY
    file, *names = arguments[1:] if read_only else arguments
    module = _imported(Path(file))
    server = MCPServer(Path(file).stem)
    for name in names:
        server.add_tool(getattr(module, name), annotations=ToolAnnotations(read_only_hint=read_only))
    server.run("stdio")


def _imported(file: Path) -> Any:
    from mcp_rl.toolserver import python_tools as seen_by_the_file  # not this module, which is __main__

    seen_by_the_file._serving = True
    sys.path[0] = str(file.parent)  # as if the file had been started
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    with contextlib.redirect_stdout(sys.stderr):  # stdout belongs to the protocol
        spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    _serve(sys.argv[1:])
