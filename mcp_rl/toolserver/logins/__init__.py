"""Logins at remote servers by OAuth (MCP specification, Authorization), through the SDK.

`login.py` asks for a login, `kept.py` keeps it, `renewal.py` puts it on requests and renews it.
"""
