"""Groups of options become options of a command, and options become settings."""

from dataclasses import dataclass
from typing import Annotated, get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from mcp_rl.cli import options
from mcp_rl.cli.evaluate import EvaluateOptions
from mcp_rl.cli.groups import Sets, settings, with_groups
from mcp_rl.cli.options import JudgeOptions, OfferOption, ServerOptions
from mcp_rl.cli.train import TrainOptions
from mcp_rl.config import config_keys

GROUPS = [value for name, value in vars(options).items() if name.endswith("Options")]


@dataclass(frozen=True)
class Place:
    folder: Annotated[str, typer.Option(help="A folder.")] = "here"
    depth: int = 1


def test_a_group_is_read_from_its_options() -> None:
    app, read = typer.Typer(), []

    @app.command()
    @with_groups
    def look(*, name: str, place: Place, loud: bool = False) -> None:
        read.append((name, place, loud))

    assert CliRunner().invoke(app, ["x", "--depth", "3", "--loud"]).exit_code == 0
    assert CliRunner().invoke(app, ["y", "--folder", "there"]).exit_code == 0
    assert read == [("x", Place("here", 3), True), ("y", Place("there", 1), False)]


@pytest.mark.parametrize("group", [*GROUPS, EvaluateOptions, TrainOptions], ids=lambda group: group.__name__)
def test_options_set_settings_that_exist(group: type) -> None:
    marks = [mark for hint in get_type_hints(group, include_extras=True).values() for mark in get_args(hint)]
    assert {mark.key for mark in marks if isinstance(mark, Sets)} <= {key for key, _ in config_keys()}


def test_options_that_are_not_given_set_nothing() -> None:
    assert set(settings(ServerOptions(allow_schema_change=False), JudgeOptions(judge_model=[])).values()) == {None}


def test_given_options_become_values_of_settings() -> None:
    found = settings(ServerOptions(["a", "b"], offer=[OfferOption.PROMPTS]), JudgeOptions(judge_model=["x", "y"]))
    assert found["server"] == ("a", "b") and found["tools.offer"] == ("prompts",)
    assert found["judge.model"] == "x" and found["judge.panel"] == ["y"]
