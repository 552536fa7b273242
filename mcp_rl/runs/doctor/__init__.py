"""`mcp-rl doctor`: report this machine, the plan of a run on it, and everything that would stop the run."""
