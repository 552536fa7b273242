"""The files of a new server, written by `mcp-rl servers new`."""
