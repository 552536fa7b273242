"""Sandboxes: servers that we start see the user's files, and what they write stays in a layer that can be thrown away.

- `Sandbox` (`sandbox.py`) says what a server runs in.
- `Layer` (`layer.py`) is the layer of one running process: `changed`, `mark`, `throw_away`, `turn`. A connection to a
  server in a sandbox has it as `connection.layer`.
- `obstacle` (`obstacle.py`) says why this machine has no sandbox, if it has none.

The work inside of the namespaces is done by `system/processes/sandboxed.py` and `layered.py`.
"""
