"""MCP clients' configuration files: their entries, and the references to variables and secrets in them."""
