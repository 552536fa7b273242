"""Outlines and rows in columns are read, prose with colons is not, and what a server has one of is asked for."""

import random
import sys
import time
from pathlib import Path

import anyio
import pytest

from mcp_rl.config import ToolsConfig
from mcp_rl.explore.answer import Answer, read_answer
from mcp_rl.explore.entities.builder import world_of
from mcp_rl.explore.entities.forms.column_form import read_columns
from mcp_rl.explore.entities.forms.outline_form import is_outline, labelled, read_outline
from mcp_rl.explore.entities.forms.reading import form_of, read_as
from mcp_rl.explore.entities.world_model import WorldModel
from mcp_rl.explore.parts import parts_of
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.plugins.resolve import resolve_server
from mcp_rl.scenarios.goals.near import near_answers
from mcp_rl.scenarios.goals.questions import Questions

SCRIPT = Path(__file__).with_name("world_server.py")
OUTLINE = """Boat Club Settings
==================

Yearly Fee: $1,200
Open Months: May, June, July
\U0001f6a3 Rowing Lanes: 6 lanes

Boats:
  - Heron: 25% hired
  - Otter: 40% hired
  - Swan: 15% hired

Waiting Time: 24 months

Lakes:
  1. North (12 islands)
  2. South (7 islands)

## Rules
- Quiet: no radios here
- Vests: always worn

Last Word: unknown
"""
SIZES = """3 files, 1.9KB
age = time since it was opened

    0d     552B  reports/a.txt
   12d     455B  notes/b.log
    3d    0.9KB  notes/c.md
"""
FOLDERS = """boats
12 files, 3 folders

largest folders
  hulls       8    1.9KB
  sails       3    1.2KB
  ropes       1    0.4KB
"""


def test_an_outline_gives_a_record_of_its_own_and_a_list_below_each_plural() -> None:
    assert is_outline(OUTLINE) and form_of([OUTLINE], of_itself=True) == "outline"
    own, boats, lakes, rules = read_outline(OUTLINE)
    assert own.name == "Boat Club Settings" and not own.several
    assert own.records[0] == {
        "Yearly Fee usd": 1200,
        "Open Months": ["May", "June", "July"],
        "Rowing Lanes": 6,
        "Waiting Time months": 24,
    }
    assert boats.name == "Boats" and boats.several
    assert boats.records[1] == {"name": "Otter", "hired percent": 40}
    assert lakes.records[1] == {"name": "South", "islands": 7}
    assert rules.name == "Rules" and len(rules.records) == 2  # what stands below the list is of nothing known
    assert rules.records[0] == {"name": "Quiet", "description": "no radios here"}


def test_only_a_tool_without_arguments_tells_an_outline() -> None:
    """Other tools may show texts that somebody wrote."""
    assert form_of([OUTLINE]) == "pairs"


@pytest.mark.parametrize(
    "text",
    [
        "Usage: call it with a path.\n\nSteps:\n- Install: run the script and wait until it has ended.\n- Go: now.",
        "Note: this server is slow.\nTip: ask it again later, please.",
        "It was late. She said: nobody comes here.\nHe answered: they will.\n\nNames:\n- Ada\n- Omar",
        "Colours:\n- red\n- green",
        "",
    ],
)
def test_prose_with_colons_is_no_outline(text: str) -> None:
    assert not is_outline(text)


def test_instructions_in_chapters_are_no_list() -> None:
    text = "# Guide\n\n## Aims\n- Say what the reader has to do first\n- Never leave out a step that matters\n"
    assert form_of([text]) is None and form_of(["# Aims\n- win the cup\n- stay dry"]) == "list"


def test_rows_in_columns_give_what_is_certain() -> None:
    assert form_of([SIZES]) == "columns"
    (found,) = read_columns(SIZES)
    assert found.name == "" and not found.cut
    assert found.records == (
        {"path": "reports/a.txt", "size bytes": 552},
        {"path": "notes/b.log", "size bytes": 455},
        {"path": "notes/c.md"},
    )
    (folders,) = read_columns(FOLDERS)
    assert (folders.name, folders.cut) == ("largest folders", True)
    assert folders.records[0] == {"name": "hulls", "size kb": 1.9}
    assert read_columns(SIZES.replace("3 files", "40 files"))[0].cut


def test_lines_that_find_nothing_do_not_hide_the_columns_of_a_tool() -> None:
    assert form_of([SIZES, SIZES, *["no files match"] * 3]) == "columns"
    assert form_of([SIZES, *["one line"] * 5]) is None


@pytest.mark.parametrize(
    "text",
    [
        "one  two\nthree  four\nfive  six",
        "a  1\na  2\na  3",
        "a  1\nb  2\nc  3",
        "  12   80   500 a.txt\n   3   20   100 b.txt\n  15  100   600 c.txt",
        "a  1\nb  x\nc  3",
        "words in a line\nand more of them\n  x   3\n  y   4\n",
    ],
)
def test_other_lines_are_no_rows(text: str) -> None:
    assert read_columns(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "A: " * 30_000,
        ("Boats:\n" + "- a: 1\n" * 20 + "\n") * 4_000,
        ("x" * 390 + ":\n  - y: 1\n") * 240,
        "  a   1B\n" * 9_000,
        "\U0001f6a3" * 50_000 + " a: 1",
        ("# " + " " * 316 + "y" * 82 + "\n") * 249,
        ("a | " * 90 + "b: 1\n") * 270,
        "  " * 50_000,
        "(" * 99_000,
    ],
)
def test_hostile_outlines_take_no_time(text: str) -> None:
    began = time.process_time()
    is_outline(text), read_outline(text), read_columns(text), parts_of(text)
    assert time.process_time() - began < 5


def test_values_beside_names_are_parts_of_a_result() -> None:
    parts = {part.phrase: part.value for part in parts_of(OUTLINE)}
    assert parts["the yearly fee"] == 1200 and parts["the value of 'Otter' under 'Boats'"] == 40
    assert "the open months" not in parts  # the verifier would want them in these very words
    assert {one.phrase: one.value for one in parts_of("\U0001f4ca Wörter: 32 | Zeilen: 7")} == {
        "the value of 'Wörter'": 32,
        "the value of 'Zeilen'": 7,
    }
    assert [one.value for one in parts_of("Total revenue: $2.5K, Growth: 60.7%")] == ["$2.5K", 60.7]
    assert parts_of("She said: nobody comes.\nHe answered: they will, and soon.") == []


def test_a_line_of_several_values_has_no_single_answer() -> None:
    assert read_answer("characters: 32 | words: 7", {}) == Answer("calls", None)
    assert read_answer("Total: 5 items", {}) == Answer("number", 5)


@pytest.fixture(scope="module")
def club(tmp_path_factory: pytest.TempPathFactory) -> WorldModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        command = f"{sys.executable} -S {SCRIPT} club"
        server = resolve_server(command, plugins=load_plugins()).configured(ToolsConfig(isolation="shared"))
        return anyio.run(world_of, server, None, ToolsConfig()).model


def test_what_a_server_has_one_of_is_known(club: WorldModel) -> None:
    assert club.kinds["boat"].complete and len(club.of_kind("boat")) == 3
    assert club.kinds["setting"].single and club.kinds["club"].single
    (setting,), (about,) = club.of_kind("setting"), club.of_kind("club")
    assert setting.facts["Yearly Fee usd"].value == 1200
    # The time is another at each call, a path is of the machine, what two tools tell differently is neither, and a
    # jetty is a thing of its own.
    assert {kind.name for kind in club.kinds.values() if kind.single} == {"setting", "club"}
    assert set(about.facts) == {"club", "founder", "founding_place", "totalMembers"}


def test_what_a_server_has_one_of_is_asked_for(club: WorldModel) -> None:
    questions = Questions(club, ["club_settings", "club_info"], 1)
    drawn = [one for one in questions.draw({"told": 40}) if not one.given]
    texts = {one.text: one.answer.value for one in drawn}
    assert 1200 in texts.values() and 24 in texts.values() and 57 in texts.values()
    fee = next(one for one in drawn if one.answer.value == 1200)
    assert "yearly fee, in US dollars" in fee.text and fee.level == "told" and len(fee.lookups) == 1
    assert any("members" in text and "club" in text for text, value in texts.items() if value == 57)
    assert any(text in ("Who is the founder of the club?", "Tell me the founder of the club.") for text in texts)
    assert "Skiff" not in texts.values()  # nobody asks for the club of the club
    near = near_answers(club, questions, fee.evaluated.program, fee.evaluated, random.Random(1))
    assert "1201" in near and "1200" not in near


def test_headings_that_sort_the_things_of_the_title_are_no_records() -> None:
    text = (
        "## Dangerous Abilities\n\n### Immunity\n- **Levitate**: Immune to Ground\n- **Flash Fire**: Immune to Fire\n"
    )
    text += "\n### Defense\n- **Filter**: Weaker hits\n- **Multiscale**: Half damage\n"
    assert not any(not found.several for found in read_outline(text))
    (listed,) = read_as("list", text)
    assert (listed.name, len(listed.records)) == ("Dangerous Abilities", 4)
    alone = text.replace("## Dangerous Abilities", "# Advice")
    assert {found.name for found in read_outline(alone) if not found.several} == {"Immunity", "Defense"}


GUIDE = """# Setup

Version: 4
Licence: MIT

```ts [src/main.ts]
import { createBoat } from 'boats'
const boat = createBoat(Oar)
  name: 'Heron',
  paint: 'red',
```
"""


def test_program_text_states_no_values() -> None:
    told = [dict(record) for found in read_as("pairs", GUIDE) for record in found.records]
    assert told == [{"Version": "4", "Licence": "MIT"}]
    assert [pair[1:] for pair in labelled(GUIDE)] == [("Version", "4"), ("Licence", "MIT")]
    (settings,) = read_as("pairs", "```yaml\nfee: 12\nlanes: 6\nboats: 9\n```")
    assert settings.records == ({"fee": 12, "lanes": 6, "boats": 9},)
