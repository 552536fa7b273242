"""Copy the pages of the site to build/pages: `python docs/stage.py`. Building the site reads them there.

A link out of docs/ works in the repository, where the target lies beside docs/. On the site it leads to a copy: the
pages of PAGES stand at its root, any other file under files/. In api.md the line on a public name becomes the directive
with which mkdocstrings writes its signature and fields.
"""

import posixpath
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STAGED = ROOT / "build" / "pages"
HOMES = {"README.md": "index.md", "README.zh-CN.md": "zh/index.md"}
"""Pages of the repository that the site has another page for."""
PAGES = ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
_NAME = re.compile(r"^- `(\w+)`: .*\n", re.MULTILINE)
_LISTED = ("RunConfig", "TrainConfig")
"""Names whose fields configuration.md lists."""
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def stage(target: Path = STAGED) -> None:
    """Write all pages and what they link to into `target`, which is emptied first."""
    shutil.rmtree(target, ignore_errors=True)
    for source in sorted((ROOT / "docs").rglob("*")):
        name = source.relative_to(ROOT).as_posix()
        if source.suffix == ".md":
            _page(name, target)
        elif source.is_file() and source.suffix not in (".py", ".pyc"):
            _copy(name, target)
    for name in PAGES:
        if (ROOT / name).exists():
            _page(name, target)


def place(name: str) -> str:
    """Return where a file of the repository stands on the site."""
    if name in HOMES or name in PAGES:
        return HOMES.get(name, name)
    return name.removeprefix("docs/") if name.startswith("docs/") else f"files/{name}"


def _page(name: str, target: Path) -> None:
    def moved(found: re.Match[str]) -> str:
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(name), found[1]))
        if not (ROOT / linked).is_file():
            return found[0]  # a strict build names it
        if (there := place(linked)).startswith("files/"):
            _copy(linked, target)
        return posixpath.relpath(there, posixpath.dirname(place(name)) or ".")

    text = (ROOT / name).read_text(encoding="utf-8")
    if name == "docs/api.md":
        text = _NAME.sub(_directive, text)
    path = target / place(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_LINK.sub(moved, text), encoding="utf-8")


def _directive(found: re.Match[str]) -> str:
    options = "    options:\n      members: false\n" if found[1] in _LISTED else ""
    return f"::: mcp_rl.{found[1]}\n{options}\n"


def _copy(name: str, target: Path) -> None:
    path = target / place(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / name, path)


if __name__ == "__main__":
    stage()
