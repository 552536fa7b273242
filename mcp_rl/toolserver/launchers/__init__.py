"""Launchers: programs such as `npx` and `uvx` that fetch a package and start the server in it.

Each is asked once what it would start, and the server is then started without it (`direct.py`).
"""
