"""`mcp-rl verify`: what of a run's claim is proven by its files, by playing episodes again, and by a signature."""
