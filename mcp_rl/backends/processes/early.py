"""The heavy imports of a learner's process, in the order that they need.

Unsloth changes transformers and PEFT when it is imported, so it is imported before them or not at all.
`IMPORT_UNSLOTH=0` in the environment: it is never imported, and so never used; `1`: it is imported first, wherever it
is installed. `IMPORT_PEFT=0`: PEFT is imported only when a learner is made; `1`, and by default: early too.
"""

from __future__ import annotations

import gc
import importlib
import os
from contextlib import suppress

from mcp_rl.backends.base.first import import_first
from mcp_rl.backends.processes.environment import USE_UNSLOTH
from mcp_rl.system.collector import collector_paused


def import_early() -> None:
    """Import what a learner needs, as `learner_environment` says. Errors are left to the code that uses the modules.

    The garbage collector never looks at the imported modules again.
    """
    import_first({"0": False, "1": True}.get(os.environ.get(USE_UNSLOTH, "")))
    with collector_paused(), suppress(Exception):
        importlib.import_module("transformers.modeling_utils")
        importlib.import_module("transformers.models.auto.modeling_auto")
        if os.environ.get("IMPORT_PEFT") != "0":
            importlib.import_module("mcp_rl.backends.processes.distributed")
    gc.freeze()
