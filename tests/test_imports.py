"""The package is light to import, and its rooms know only what lies below them (docs/architecture.md)."""

import ast
import functools
import graphlib
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
FLOORS = (
    ("train", "__main__"),
    ("cli",),
    ("runs", "__init__"),
    ("evaluation",),
    ("backends",),
    ("scenarios",),
    ("rollouts", "plugins", "explore"),
    ("model", "rewards"),
    ("run_directory", "learning", "tiny"),
    ("trajectory", "inference", "toolserver"),
    ("scenario", "config", "system"),
    ("errors",),
)
"""The rooms and root modules of the package, from the top floor down. A file imports from its own room and from lower
floors, in functions and for types too."""

MOST_ENTRIES, MOST_ROOMS, MOST_PARAMETERS = 24, 15, 8
FLOOR_OF = {room: number for number, floor in enumerate(FLOORS) for room in floor}


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import mcp_rl", HEAVY),
        ("import mcp_rl.cli", HEAVY),
        ("from mcp_rl import McpScenario, RunConfig, TrainConfig", HEAVY - {"pydantic"}),
        ("import mcp_rl.plugins.manager, mcp_rl.config.load", HEAVY - {"pydantic"}),
        ("from mcp_rl.plugins.manager import load_plugins; load_plugins()", HEAVY - {"pydantic"}),
        ("import mcp_rl.runs.history, mcp_rl.cli.printing.history_tables", {"matplotlib", "torch", "mcp"}),
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


def test_files_import_only_from_lower_floors() -> None:
    upward = [
        f"{module} imports {other}: move what it needs to a lower floor, or the room to a higher one (FLOORS)"
        for module, imported in _graph().items()
        for other in imported
        if _room(module) != _room(other) and FLOOR_OF[_room(module)] >= FLOOR_OF[_room(other)]
    ]
    assert upward == []


def test_no_files_import_each_other_in_a_circle() -> None:
    try:
        tuple(graphlib.TopologicalSorter(_graph()).static_order())
    except graphlib.CycleError as error:
        pytest.fail(f"{' <- '.join(error.args[1])}: give what ties them together a file of its own below both")


def test_the_house_has_few_entries_and_every_room_a_floor() -> None:
    entries = [entry for entry in PACKAGE.iterdir() if entry.name not in ("__pycache__", "bundled")]
    rooms = [entry for entry in entries if entry.is_dir()]
    assert len(entries) <= MOST_ENTRIES, "find the room that a new module belongs to"
    assert len(rooms) <= MOST_ROOMS, "find the room that a new folder belongs to"
    assert {entry.stem for entry in entries if entry.name != "py.typed"} == set(FLOOR_OF), "FLOORS names every entry"


def test_a_class_name_stands_for_one_class() -> None:
    homes: dict[str, list[str]] = {}
    for module, file in MODULES.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}, "rename one, or make it private"


def test_internal_functions_take_few_parameters() -> None:
    long = [
        f"{module}.{node.name} takes {count}: pass one object that holds what belongs together"
        for module, file in MODULES.items()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (count := _parameters(node)) > MOST_PARAMETERS
        and (module, node.name) not in LONG_ON_PURPOSE
    ]
    assert long == []


LONG_ON_PURPOSE = {
    ("mcp_rl.inference.attention", "packed_attention"),  # called by transformers, which fixes them
    ("mcp_rl.backends.local", "__init__"),  # public: its options are the keywords that users type
    ("mcp_rl.rewards.ruler", "ruler_score_group"),  # public, likewise
}
"""Functions whose parameters are a public interface."""


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


def _room(module: str) -> str:
    return [*module.split("."), "__init__"][1]


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the parameters that a caller may give."""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


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


@functools.cache
def _graph() -> dict[str, set[str]]:
    """Every module of the package, with those that it imports: in functions, for types, by name."""
    graph: dict[str, set[str]] = {}
    for module, file in MODULES.items():
        found = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {name.name for name in node.names}
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                found |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                submodules = {name.name: f"{node.module}.{name.name}" for name in node.names}
                found |= {sub if sub in MODULES else node.module for sub in submodules.values()}
        graph[module] = (found & set(MODULES)) - {module}
    return graph


MODULES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for file in sorted(PACKAGE.rglob("*.py"))
}


def test_no_two_test_files_have_one_name() -> None:
    names = [path.name for path in ROOT.glob("tests/**/test_*.py")]  # pytest imports each by its name alone
    assert sorted(names) == sorted(set(names))
