"""The learner's heavy imports, in the order that they need, before anybody waits for them.

Unsloth changes transformers and PEFT as it is imported, so it comes before them or not at all. `IMPORT_UNSLOTH=0` in
the environment: it is never imported, and so never used; `1`: it is imported first, wherever it is installed.
`IMPORT_PEFT=0`: PEFT is imported only when a learner is made; `1`, and by default: early too.
"""

import importlib
import os
from contextlib import suppress

from mcp_rl.backends.loading.first import import_first

UNSLOTH = "MCP_RL_UNSLOTH"
"""The variable that tells a child what `unsloth.use` is: 1, 0, or nothing where it is left open."""


def import_early(use_unsloth: bool | None) -> None:
    """Import what a learner needs; `use_unsloth` is `unsloth.use`. What fails shows where it is used."""
    import_first(use_unsloth)
    with suppress(Exception):
        importlib.import_module("transformers.modeling_utils")
        importlib.import_module("transformers.models.auto.modeling_auto")
        if os.environ.get("IMPORT_PEFT") != "0":
            importlib.import_module("mcp_rl.backends.leader")
