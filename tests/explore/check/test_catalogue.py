"""Every kind of finding is used, with a value for each of its placeholders."""

import ast
from pathlib import Path
from string import Formatter

from mcp_rl.explore.check import catalogue
from mcp_rl.explore.check.findings import Kind

FOLDER = Path(catalogue.__file__).parent
KINDS = {name: kind for name, kind in vars(catalogue).items() if isinstance(kind, Kind)}


def placeholders(kind: Kind) -> set[str]:
    texts = (kind.check, kind.what, kind.means, kind.do)
    return {name for text in texts for _, name, _, _ in Formatter().parse(text) if name}


def test_every_kind_is_used_outside_the_catalogue() -> None:
    code = "".join(file.read_text(encoding="utf-8") for file in FOLDER.glob("*.py") if file.stem != "catalogue")
    assert [name for name in KINDS if name not in code] == []


def test_findings_fill_every_placeholder() -> None:
    for file in FOLDER.glob("*.py"):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "found":
                name = ast.unparse(call.func.value).rpartition(".")[2]
                if name in KINDS:
                    assert placeholders(KINDS[name]) == {word.arg for word in call.keywords}, f"{file.name}: {name}"
