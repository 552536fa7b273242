"""Changes over a world of files in folders: moved, renamed, edited, copied and made of what others hold."""

import json
import posixpath
import re

import pytest

from mcp_rl.explore.entities import world_model as models
from mcp_rl.scenarios.goals.changes.calls import StateChange, with_argument
from mcp_rl.scenarios.goals.changes.changes import Changes
from mcp_rl.scenarios.goals.placed import placing

TEXTS = {
    "/d/red/plan.txt": "the harbor opens early\n",
    "/d/red/list.txt": "pears and bread",
    "/d/red/pears.md": "pears are ripe in autumn",
    "/d/blue/trip.md": "a train to the coast",
    "/d/blue/coast.txt": "sand and wind",
}
FOLDERS = ("/d/red", "/d/blue")
FILE = {
    "path": models.EntityField(name="path", words="path", kind="text"),
    "name": models.EntityField(name="name", words="name", kind="text"),
    "folder": models.EntityField(name="folder", words="folder", kind="text"),
    "content": models.EntityField(name="content", words="content", kind="prose"),
}
FOLDER = {name: FILE[name] for name in ("path", "name", "folder")}
EFFECTS = (
    models.Effect(
        tool="store_text", does="creates", kind="file", keyed_by="at", valued_by={"at": "path", "words": "content"},
        example={"at": "/d/x.txt", "words": "x"},
    ),
    models.Effect(
        tool="store_text", does="sets", kind="file", field="content", keyed_by="at", valued_by={"words": "content"},
        example={"at": "/d/x.txt", "words": "x"},
    ),
    models.Effect(
        tool="carry", does="sets", kind="file", field="path", keyed_by="source", valued_by={"target": "path"},
        example={"source": "/d/x.txt", "target": "/d/y.txt"},
    ),
)  # fmt: skip


def folder_world() -> models.WorldModel:
    seen = [models.Observation(tool="tree", arguments={}, text=json.dumps([*TEXTS, *FOLDERS]), lists="file")]
    seen.append(seen[0].model_copy(update={"lists": "folder"}))
    things = []
    for path, text in TEXTS.items():
        folder, name = posixpath.split(path)
        at = len(seen)
        seen.append(models.Observation(tool="read", arguments={"path": path}, text=text))
        facts = {"path": (path, (0,)), "name": (name, (0,)), "folder": (folder, (0,)), "content": (text, (at,))}
        things.append(
            models.Entity(
                kind="file", key=path, facts={n: models.Fact(value=v, shown_by=by) for n, (v, by) in facts.items()}
            )
        )
    for path in FOLDERS:
        values = {"path": path, "name": posixpath.basename(path), "folder": "/d"}
        things.append(
            models.Entity(
                kind="folder", key=path, facts={n: models.Fact(value=v, shown_by=(1,)) for n, v in values.items()}
            )
        )
    return models.WorldModel(
        server="folders",
        kinds={
            "file": models.EntityKind(name="file", plural="files", key="path", fields=FILE, complete=True),
            "folder": models.EntityKind(name="folder", plural="folders", key="path", fields=FOLDER, complete=True),
        },
        entities=tuple(things),
        observations=tuple(seen),
        slots=(
            models.ArgumentSlot(tool="read", parameter="path", kind="file", field="path"),
            models.ArgumentSlot(tool="carry", parameter="source", kind="file", field="path"),
            models.ArgumentSlot(tool="store_text", parameter="at", kind="file", field="path"),
        ),
        references=(models.Reference(kind="file", field="folder", to="folder"),),
        effects=EFFECTS,
    )


@pytest.fixture(scope="module")
def changes() -> list[StateChange]:
    return list(Changes(folder_world(), ["store_text", "carry", "tree", "read"], seed=3).draw(60))


def with_words(changes: list[StateChange], words: str) -> list[StateChange]:
    found = [one for one in changes if re.search(words, one.text)]
    assert found, words
    return found


def test_keys_of_files_are_made_of_folders_and_names() -> None:
    place = placing(folder_world(), "file")
    assert place is not None
    assert place.places == ("/d/blue", "/d/red")
    assert (place.key("/d/red", "new.txt"), place.key("/d/red", "plan.txt")) == ("/d/red/new.txt", None)


def test_moved_files_keep_their_names(changes: list[StateChange]) -> None:
    for change in with_words(changes, r"with (?:its name|their names) unchanged"):
        assert change.does == "sets"
        for tool, arguments in change.calls:
            source, target = str(arguments["source"]), str(arguments["target"])
            assert tool == "carry"
            assert posixpath.basename(source) == posixpath.basename(target)
            assert source != target


def test_a_word_is_replaced_and_the_rest_of_the_text_stays(changes: list[StateChange]) -> None:
    for change in with_words(changes, r"instead; all else in it stays|and leave the rest as it is"):
        old, new = re.findall(r"'(\w+)'", change.text.replace("it says", ""))[-2:]
        for _, arguments in change.calls:
            assert arguments["words"] == TEXTS[str(arguments["at"])].replace(old, new)
        assert change.level == "brought-about"


def test_new_files_hold_what_must_be_found_out(changes: list[StateChange]) -> None:
    for change in with_words(changes, "a new file called .* exactly the content of"):
        assert change.calls[0][1]["words"] in TEXTS.values()
        assert change.lookups
    for change in with_words(changes, "the names of .* in alphabetical order"):
        names = str(change.calls[0][1]["words"]).split("\n")
        assert names == sorted(names)
        assert set(names) <= {posixpath.basename(path) for path in (*TEXTS, *FOLDERS)}


def test_each_change_has_near_misses_that_differ_from_it(changes: list[StateChange]) -> None:
    for change in changes:
        assert change.near
        assert all(list(near) != list(change.calls) for near in change.near)


def test_arguments_inside_lists_of_objects_are_filled_in() -> None:
    example = {"entities": [{"name": "A", "kind": "x", "notes": ["n"]}], "names": ["A"]}
    filled = with_argument(with_argument(example, "entities[].name", "B"), "entities[].notes", "m")
    assert filled["entities"] == [{"name": "B", "kind": "x", "notes": ["m"]}]
    assert with_argument(example, "names", "B")["names"] == ["B"]


def history_world() -> models.WorldModel:
    """A world of branches that begin at steps, and of files under headings."""
    steps = {"s1": "Plant pears", "s2": "Build a harbor", "s3": "Paint it red", "s4": "Sell it", "s5": "Move on"}
    branches = {"main": "s3", "old": "s1", "draft": "s2"}
    headings = {"a.txt": "Kept", "b.txt": "Unknown", "c.txt": "Unknown", "d.md": "Kept"}
    fields = {"step": ("id", "title"), "branch": ("name", "step"), "file": ("path", "heading")}
    told = {
        "step": [{"id": key, "title": title} for key, title in steps.items()],
        "branch": [{"name": key, "step": step} for key, step in branches.items()],
        "file": [{"path": key, "heading": heading} for key, heading in headings.items()],
    }
    seen = [
        models.Observation(tool=f"list_{kind}", arguments={}, text=json.dumps(told[kind]), lists=kind) for kind in told
    ]
    things = [
        models.Entity(
            kind=kind,
            key=str(row[fields[kind][0]]),
            facts={n: models.Fact(value=v, shown_by=(at,)) for n, v in row.items()},
        )
        for at, kind in enumerate(told)
        for row in told[kind]
    ]
    kinds = {
        kind: models.EntityKind(
            name=kind, plural=f"{kind}s", key=names[0], complete=True,
            fields={name: models.EntityField(name=name, words=name, kind="text") for name in names},
        )
        for kind, names in fields.items()
    }  # fmt: skip
    effects = (
        models.Effect(tool="keep", does="sets", kind="file", field="heading", keyed_by="paths", value="Kept",
               example={"paths": ["b.txt"]}),
        models.Effect(tool="fork", does="creates", kind="branch", keyed_by="name", valued_by={"name": "name"},
               copies={"base": "step"}, example={"name": "x", "base": "old"}),
    )  # fmt: skip
    slots = (models.ArgumentSlot(tool="keep", parameter="paths", kind="file", field="path"),)
    return models.WorldModel(
        server="w", kinds=kinds, entities=tuple(things), observations=tuple(seen), slots=slots, effects=effects,
        references=(models.Reference(kind="branch", field="step", to="step"),),
    )  # fmt: skip


def test_states_are_asked_for_that_no_argument_gives() -> None:
    drawn = list(Changes(history_world(), ["keep", "fork"], 3).draw(24))
    kept = [one for one in drawn if one.does == "sets"]
    forked = [one for one in drawn if one.does == "creates"]
    assert kept and forked
    for one in kept:
        assert "listed under 'Kept'" in one.text and not one.near and not one.values
        changed = [str(arguments["paths"]) for _, arguments in (*one.calls, *one.too_much)]
        assert set(changed) <= {"['b.txt']", "['c.txt']"}
    for one in forked:
        (call,) = one.calls
        asked = re.search(r" that starts at (.*)\.", one.text)
        assert one.level == "brought-about" and asked is not None
        aim = {"main": "Paint", "old": "Plant", "draft": "Build"}[str(call[1]["base"])]
        assert call[1]["name"] in one.text and not set(re.findall("Paint|Plant|Build", asked[1])) - {aim}
