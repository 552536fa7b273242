"""What the learner's process imports before anybody waits for it, and in which order."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from mcp_rl.backends.early import import_early
import_early(None)
print(*(name for name in ("unsloth", "torch", "transformers", "peft") if name in sys.modules))
"""
UNSLOTH = """
import sys
assert not {"transformers", "peft"} & set(sys.modules), "Unsloth comes first"
"""


def imported(folder: Path, **environment: str) -> list[str]:
    """What is there after the early imports, of what takes long, where a package called Unsloth is installed."""
    (folder / "unsloth.py").write_text(UNSLOTH)
    paths = os.pathsep.join([str(folder), *sys.path])
    given = {**os.environ, "PYTHONPATH": paths, **environment}
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=given, capture_output=True, text=True, check=True)
    return ran.stdout.split()


def test_unsloth_comes_first_where_it_is_asked_for_and_peft_can_wait(tmp_path: Path) -> None:
    assert imported(tmp_path, IMPORT_UNSLOTH="1", IMPORT_PEFT="0") == ["unsloth", "torch", "transformers"]
