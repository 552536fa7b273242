"""The package is light to import, and its parts know only what lies below them."""

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import mcp_rl

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mcp_rl"
HEAVY = {"torch", "transformers", "mcp", "litellm", "openai", "peft", "scipy", "rich", "pydantic"}
TORCH_LIVES_IN = {"inference", "learning", "tiny", "backends"}
LAYERS = [
    {"cli"},
    {"sft"},
    {"train", "serve", "generate_words", "servers", "runs"},
    {"generate", "report", "export"},
    {"evaluation", "doctor"},
    {"training"},
    {"evaluate", "backends"},
    {"gather", "player", "model", "rewards", "scenarios"},
    {"rollout", "serving", "hardware"},
    {"speaker"},
    {"inference", "learning", "toolserver", "tracking", "tiny", "run_directory", "overrides", "language_model"},
    {"trajectory", "plugins", "processes"},
    {"scenario", "config", "chat", "boundary"},
    {"errors", "threads", "durable", "visible", "activity", "tasks"},
]
"""From top to bottom. A part imports from parts that lie below its own line, and from no other."""


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import mcp_rl", HEAVY),
        ("import mcp_rl.cli", HEAVY),
        ("from mcp_rl import McpScenario, RunConfig, TrainConfig", HEAVY - {"pydantic"}),
        ("import mcp_rl.plugins.manager, mcp_rl.overrides", HEAVY - {"pydantic"}),
        ("from mcp_rl.plugins.manager import load_plugins; load_plugins()", HEAVY - {"pydantic"}),
    ],
)
def test_importing_leaves_heavy_packages_alone(statement: str, unwanted: set[str]) -> None:
    program = f"import json, sys; {statement}; print(json.dumps(list(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    assert unwanted.isdisjoint(loaded)


def test_every_public_name_is_there_and_listed_once() -> None:
    assert list(mcp_rl._HOMES) == mcp_rl.__all__ == sorted(set(mcp_rl.__all__))
    for name in mcp_rl.__all__:
        assert getattr(mcp_rl, name) is not None
        assert name in dir(mcp_rl)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = mcp_rl.no_such_name


@pytest.mark.parametrize("order", ["import mcp_rl.rollout; from mcp_rl import rollout", "from mcp_rl import rollout"])
def test_rollout_is_the_function_whatever_was_imported_first(order: str) -> None:
    program = f"{order}; import mcp_rl.rollout, mcp_rl; assert callable(rollout) and mcp_rl.rollout is rollout"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_parts_import_only_what_lies_below_them() -> None:
    level = {part: number for number, layer in enumerate(LAYERS) for part in layer}
    upward = []
    for file in sorted(PACKAGE.rglob("*.py")):
        part = _part(file)
        if part in ("__init__", "__main__"):
            continue
        assert part in level, f"{part} has no place in LAYERS"
        upward += [
            f"{file.relative_to(ROOT)} imports {module}"
            for module in _imports(file)
            if module.startswith("mcp_rl.") and (other := module.split(".")[1]) != part and level[other] <= level[part]
        ]
    assert upward == []


def test_torch_is_imported_only_where_models_are_computed() -> None:
    elsewhere = [
        str(file.relative_to(ROOT))
        for file in PACKAGE.rglob("*.py")
        if _part(file) not in TORCH_LIVES_IN and any(module.split(".")[0] == "torch" for module in _imports(file))
    ]
    assert elsewhere == []


def test_what_is_imported_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = {_normal(requirement) for requirement in project["dependencies"]}
    extras = {
        name: {_normal(requirement) for requirement in listed}
        for name, listed in project["optional-dependencies"].items()
    }
    dev, optional = extras.pop("dev"), set().union(*extras.values())
    distributions = packages_distributions()
    for folder, declared in (("mcp_rl", core | optional), ("servers", core), ("plugins", core), ("tests", core | dev)):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for module in {name.split(".")[0] for name in _imports(file)} - {"mcp_rl"}:
                owners = {_normal(owner) for owner in distributions.get(module, [])}
                assert not owners or owners & declared, f"{file.relative_to(ROOT)} imports {module}"


def test_every_dependency_is_explained_and_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    explained = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    core = [_normal(requirement) for requirement in project["dependencies"]]
    extras = {name: list(map(_normal, required)) for name, required in project["optional-dependencies"].items()}
    for name in [*core, *(name for required in extras.values() for name in required)]:
        assert f"**{name}**" in explained, name
    for name in [*core, *extras["dev"]]:
        assert any(line.startswith(f"{name}==") for line in pinned), name


def _part(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _normal(requirement: str) -> str:
    name = requirement.replace("_", "-").lower()
    for mark in "<>=[;!~ ":
        name = name.partition(mark)[0]
    return name


def _imports(file: Path) -> Iterator[str]:
    """Absolute names of all modules that a file imports when it runs, inside functions too."""
    yield from _imported(ast.parse(file.read_text(encoding="utf-8")))


def _imported(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
            continue
        if isinstance(child, ast.Import):
            yield from (name.name for name in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            yield child.module
            yield from (f"{child.module}.{name.name}" for name in child.names if child.module == "mcp_rl")
        yield from _imported(child)
