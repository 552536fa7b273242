"""The early imports of the learner's process, and their order."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from mcp_rl.backends.processes.early import import_early
import_early()
print(*(name for name in ("unsloth", "torch", "transformers", "peft") if name in sys.modules))
"""
UNSLOTH = """
import sys
assert not {"transformers", "peft"} & set(sys.modules), "Unsloth comes first"
"""


def imported(folder: Path, **environment: str) -> list[str]:
    """Return the heavy packages that the early imports load, with a fake Unsloth installed."""
    (folder / "unsloth.py").write_text(UNSLOTH)
    paths = os.pathsep.join([str(folder), *sys.path])
    given = {**os.environ, "PYTHONPATH": paths, **environment}
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=given, capture_output=True, text=True, check=True)
    return ran.stdout.split()


def test_unsloth_is_imported_first_and_peft_can_wait(tmp_path: Path) -> None:
    assert imported(tmp_path, IMPORT_UNSLOTH="1", IMPORT_PEFT="0") == ["unsloth", "torch", "transformers"]
