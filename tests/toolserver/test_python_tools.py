"""Python functions are the tools of a server that imports their file."""

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


def test_what_the_process_could_not_import_is_refused() -> None:
    def inner() -> None: ...

    for function in (inner, lambda: 1, Path.exists, len):
        with pytest.raises(UserError, match=r"must be a function at the top level of a \.py file"):
            python_tools(function)
    with pytest.raises(UserError, match="one file, not of 2"):
        python_tools(longer, load_plugins)
