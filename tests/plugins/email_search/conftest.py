"""The modules of the bundled inbox can be imported, as its own scripts import them; a database is built once."""

import sys
from pathlib import Path

import pytest

from mcp_rl.toolserver.bundled import bundled_root

FOLDER = bundled_root() / "servers/python/mcp_email_search"
sys.path.append(str(FOLDER))


@pytest.fixture(scope="session")
def small_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A company of 400 mails."""
    from build_db import main

    path = tmp_path_factory.mktemp("mail") / "small.db"
    assert main(["--synthetic", "400", "--database", str(path)]) == 0
    return path
