"""`mcp-rl watch`: the pages of runs that go on, served on loopback."""
