"""`mcp-rl doctor`: what this machine has, what a run would come to on it, and what would not work and why."""
