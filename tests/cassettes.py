"""Recorded answers of the bundled servers, for tests that are about something else than the server.

They lie in `tests/data/cassettes`. `RECORD_CASSETTES=1 python -m pytest TEST` runs a test with the servers and adds
what is missing; to make one anew, delete it first. Models that compute may sample other calls on another machine, so
what they do is not played from here.
"""

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "data" / "cassettes"


def recorded_calls(name: str) -> tuple[str, str]:
    """Words for a command that is to get its answers from the cassette `name`."""
    return "--record" if os.environ.get("RECORD_CASSETTES") else "--replay", str(FOLDER / f"{name}.jsonl")
