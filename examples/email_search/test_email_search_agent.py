"""Measure agents on questions of the split `test`, which no training has seen.

    python test_email_search_agent.py [--model MODEL]... [OPTIONS OF mcp-rl evaluate]

Without a model, it compares the built-in model and the trained run.
"""

import sys
import tempfile
from pathlib import Path

from train_email_search_agent import SERVER, questions, run

TRAINED = Path(".mcp_rl/default/models/mcp_email_search-tiny")


def main(options: list[str]) -> int:
    if "--model" not in options:
        found = ["mcp-rl/tiny", *(str(path) for path in [TRAINED] if path.exists())]
        options = [*(word for model in found for word in ("--model", model)), *options]
    with tempfile.TemporaryDirectory() as folder:
        run("evaluate", *SERVER, "--scenarios", str(questions(Path(folder), "test")), *options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
