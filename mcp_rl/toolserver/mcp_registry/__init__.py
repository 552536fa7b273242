"""Servers of the MCP registry (`--server registry:NAME`): found by name, shown, and started only after consent."""
