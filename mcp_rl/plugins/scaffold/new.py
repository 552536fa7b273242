"""Write a new server with its plugin and its test, which work unchanged."""

import json
import keyword
import re
import shlex
from pathlib import Path

from mcp_rl.errors import ConfigError, RunDirectoryError
from mcp_rl.system.durable import write_atomically

_FILES = {"server.py": "server.py.jinja", "{name}_plugin.py": "plugin.py.jinja", "test_{name}.py": "test.py.jinja"}
_FOR_THE_TINY_MODEL = "--count 240 --max-steps 1 --unsolvable 0 --without-tools 0"
"""Tasks such as the built-in model can learn; `mcp-rl train` makes the same kind by exploring."""
_ENOUGH = "--steps 20"
"""The built-in model has learned most of the scaffold by then; the default of a run is for larger servers."""
_LONGEST = 40
_TAKEN = {"mcp", "mcp_rl", "mcp_calculator", "mcp_notes", "server", "test", "tests", "plugin", "pytest"}
"""Names that would hide an existing module or server."""


def new_server(name: str, *, folder: Path = Path(), as_json: bool = False) -> None:
    """Write `folder/name/`, and print what to type next.

    Raises ConfigError for an invalid name or an existing folder, RunDirectoryError if the files cannot be written.
    """
    files = write_server(name, folder)
    plugin = files[1]
    place, tasks = shlex.quote(str(plugin)), shlex.quote(str(plugin.parent / "scenarios.jsonl"))
    commands = [
        f"mcp-rl servers check {name} --plugin {place}",
        f"mcp-rl generate --server {name} --plugin {place} {_FOR_THE_TINY_MODEL} --out {tasks}",
        f"mcp-rl train --server {name} --plugin {place} --scenarios {tasks} {_ENOUGH}",
    ]
    if as_json:
        print(json.dumps({"name": name, "files": [str(file) for file in files], "commands": commands}))
        return
    print(f"{plugin.parent} holds a server, its plugin and its test ({', '.join(file.name for file in files)}).\n")
    for command, purpose in zip(
        commands,
        ("check that it is fit to train on", "make tasks from live calls", "train a model on them: minutes"),
        strict=True,
    ):
        print(f"    {command}   # {purpose}")


def write_server(name: str, folder: Path) -> list[Path]:
    """Write and return the files: the server, the plugin and the test. Raises like `new_server`."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or len(name) > _LONGEST:
        raise ConfigError(
            f"{name!r} cannot be a server's name: use lower-case letters, digits and _, a letter first, "
            f"{_LONGEST} characters at most, such as my_server."
        )
    if name in _TAKEN:
        raise ConfigError(f"The name {name} is taken; choose another one, such as my_{name}.")
    target = folder / name
    if target.exists():
        raise ConfigError(f"{target} already exists; choose another name, or another folder with --dir.")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader(__package__),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    written = []
    try:
        target.mkdir(parents=True)
        for file, page in _FILES.items():
            path = target / file.format(name=name)
            text = pages.get_template(page).render(name=name, title=name.replace("_", " ").capitalize())
            write_atomically(path, text.encode())
            written.append(path)
    except OSError as error:
        raise RunDirectoryError(f"Cannot write {target}: {error.strerror or error}.") from error
    return written
