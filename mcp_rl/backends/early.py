"""The learner's heavy imports, in the order that they need, before anybody waits for them.

Unsloth changes transformers and PEFT as it is imported, so it comes before them or not at all. `IMPORT_UNSLOTH=0` in
the environment: it is never imported, and so never used; `1`: it is imported first, wherever it is installed.
`IMPORT_PEFT=0`: PEFT is imported only when an adapter is made; `1`: early.
"""

import importlib
from contextlib import suppress


def import_early() -> None:
    """Import what a learner needs. What fails shows where it is used."""
    with suppress(Exception):
        importlib.import_module("mcp_rl.backends.here")
