"""Cassettes record the calls of a job and their results in a file, and replay the job with no server at all.

`cassette.py` holds the recording and its two links, `library.py` the outcomes in memory and the identity of calls,
`tape.py` the file, and `check.py` the checks before a job starts. No secret is recorded: `known_secrets.py` says which.
"""

from mcp_rl.toolserver.cassette.cassette import Cassette
from mcp_rl.toolserver.cassette.check import check_cassette

__all__ = ["Cassette", "check_cassette"]
