"""Cassettes: the calls of a job and their results in a file, and the same job played back with no server at all."""

from mcp_rl.toolserver.cassette.cassette import Cassette
from mcp_rl.toolserver.cassette.check import check_cassette

__all__ = ["Cassette", "check_cassette"]
