"""Work on the pinned packages: `pins.py lock` writes their hashes, `pins.py core` prints those that the wheel needs.

`lock` resolves the core and the dev extra under constraints.txt with uv, for every platform and Python, and writes
requirements-hashed.txt: what constraints.txt pins, but not torch. torch comes in variants, from PyPI or from an index
of its own (TORCH_INDEX), and brings packages for CUDA in some: these are in requirements-torch-hashed.txt, with the
hashes that PyPI has.
"""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS, HASHED, TORCH = (
    ROOT / name for name in ("constraints.txt", "requirements-hashed.txt", "requirements-torch-hashed.txt")
)
ABOUT = "# Written by `make lock` from constraints.txt, and not to be edited.\n"


def entries(text: str) -> dict[str, str]:
    """Return the entries of a file of requirements with hashes, by name."""
    return {found[1]: found[0] for found in re.finditer(r"^([\w.-]+)==.*(?:\n    .*)*\n?", text, re.MULTILINE)}


def pinned() -> dict[str, str]:
    """Return the versions in constraints.txt by name."""
    lines = CONSTRAINTS.read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {name.replace(".", "-"): version for name, version in pairs}


def lock() -> None:
    asked = ["pyproject.toml", "--extra", "dev", "--constraint", "constraints.txt", "--universal", "--generate-hashes"]
    shown = ["--no-header", "--no-annotate", "--quiet"]
    made = subprocess.run(
        [str(Path(sys.executable).with_name("uv")), "pip", "compile", *asked, *shown],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    )
    found, pins = entries(made.stdout.decode()), pinned()
    if left := sorted(pins.keys() - found.keys()):
        sys.exit(f"constraints.txt pins {', '.join(left)}, which nothing needs: remove these lines.")
    ours = {name: entry for name, entry in found.items() if name in pins and name != "torch"}
    HASHED.write_text(ABOUT + "".join(ours.values()))
    TORCH.write_text(ABOUT + "".join(entry for name, entry in found.items() if name not in ours))


def core() -> None:
    """Print the entries of the packages that the wheel needs on this machine, torch among them."""
    known = entries(HASHED.read_text()) | entries(TORCH.read_text())
    needed, waiting = set(), ["mcp-rl"]
    while waiting:
        for text in _requires(waiting.pop()):
            requirement = Requirement(text)
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            if name not in needed and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
                needed.add(name)
                waiting.append(name)
    print("".join(known[name] for name in sorted(needed & known.keys())), end="")


def _requires(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


if __name__ == "__main__":
    {"lock": lock, "core": core}[sys.argv[1]]()
