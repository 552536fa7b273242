"""The formats in which chat models write tool calls, one module each, as readers of sampled text."""
