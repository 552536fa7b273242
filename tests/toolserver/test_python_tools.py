"""Python functions are the tools of a server that imports their file."""

import subprocess
import sys
from pathlib import Path

import pytest

from mcp_rl import Sessions, UserError, python_tools
from mcp_rl.plugins.manager import load_plugins

print("what the file prints while it is imported does not disturb the protocol")


def longer(words: list[str], by: int = 1) -> str:
    """Repeat some words."""
    return " ".join(words * (1 + by))


async def test_a_function_is_a_tool_with_its_docstring_and_types() -> None:
    async with Sessions() as sessions:
        session = await sessions.get(python_tools(longer, read_only=True))
        (tool,) = session.offered
        assert (tool.name, tool.description) == ("longer", "Repeat some words.")
        assert tool.input_schema["required"] == ["words"] and "longer" in session.read_only
        assert (await session.connection.call("longer", {"words": ["ho"], "by": 2})).text == "ho ho ho"


def test_a_file_without_a_guard_does_not_start_itself_without_end(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(UNGUARDED)
    command = [sys.executable, "-m", "mcp_rl.toolserver.python_tools", str(program), "one"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and 'if __name__ == "__main__":' in done.stderr


UNGUARDED = """
import asyncio
import mcp_rl

def one() -> int:
    return 1

async def main():
    async with mcp_rl.Sessions() as sessions:
        await sessions.get(mcp_rl.python_tools(one))

asyncio.run(main())
"""


def test_what_the_process_could_not_import_is_refused() -> None:
    def inner() -> None: ...

    for function in (inner, lambda: 1, Path.exists, len):
        with pytest.raises(UserError, match=r"must be a function at the top level of a \.py file"):
            python_tools(function)
    with pytest.raises(UserError, match="one file, not of 2"):
        python_tools(longer, load_plugins)
