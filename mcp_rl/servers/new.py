"""A server of one's own, begun: the server, its plugin and its test, which work before a line of them is changed."""

import json
import keyword
import re
from pathlib import Path

from mcp_rl.durable import write_atomically
from mcp_rl.errors import ConfigError, RunDirectoryError

_FILES = {"server.py": "server.py.jinja", "{name}_plugin.py": "plugin.py.jinja", "test_{name}.py": "test.py.jinja"}
_LONGEST = 40
_TAKEN = {"mcp", "mcp_rl", "mcp_calculator", "mcp_notes", "server", "test", "tests", "plugin", "pytest"}
"""Names that would hide a module or a server that is there."""


def new_server(name: str, *, folder: Path = Path(), as_json: bool = False) -> None:
    """Write `folder/name/`, and print what to type next.

    Raises ConfigError for a name that is none or a folder that is there already, RunDirectoryError where nothing can
    be written.
    """
    files = write_server(name, folder)
    plugin = files[1]
    commands = [
        f"mcp-rl servers check {name} --plugin {plugin}",
        f"mcp-rl generate --server {name} --plugin {plugin} --count 200 --out {plugin.parent / 'scenarios.jsonl'}",
        f"mcp-rl train --server {name} --plugin {plugin}",
    ]
    if as_json:
        print(json.dumps({"name": name, "files": [str(file) for file in files], "commands": commands}))
        return
    print(f"{plugin.parent} holds a server, its plugin and its test ({', '.join(file.name for file in files)}).\n")
    for command, purpose in zip(
        commands, ("is it fit to train on?", "tasks, out of live calls", "a model that masters it"), strict=True
    ):
        print(f"    {command}   # {purpose}")


def write_server(name: str, folder: Path) -> list[Path]:
    """Write the files; returns the server, the plugin and the test. Raises as `new_server` does."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or len(name) > _LONGEST:
        raise ConfigError(
            f"{name!r} cannot be a server's name: it takes small letters, digits and _, a letter first, "
            f"{_LONGEST} characters at most, such as my_server."
        )
    if name in _TAKEN:
        raise ConfigError(f"The name {name} is taken; choose another one, such as my_{name}.")
    target = folder / name
    if target.exists():
        raise ConfigError(f"{target} is there already: choose another name, or another folder with --dir.")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader("mcp_rl.servers"), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
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
