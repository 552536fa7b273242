"""Models of the worlds behind real servers, which nobody described."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from mcp_rl.cli import main
from mcp_rl.config import ToolsConfig
from mcp_rl.errors import ScenarioError
from mcp_rl.explore.entities.builder import BuiltWorld, world_of
from mcp_rl.explore.entities.differences import Leaf, SeenState, compared
from mcp_rl.explore.entities.keeping import collected_worlds, read_world, save_world
from mcp_rl.explore.entities.world_model import EntityField, EntityKind, WorldModel
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.plugins.resolve import resolve_server

SCRIPT = Path(__file__).with_name("world_server.py")
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def command(world: str) -> str:
    return f"{sys.executable} -S {SCRIPT} {world}"


def built(server: str) -> BuiltWorld:
    resolved = resolve_server(server, plugins=load_plugins()).configured(ToolsConfig(isolation="shared"))
    return anyio.run(world_of, resolved, None, ToolsConfig())


@pytest.fixture(scope="module")
def notebook() -> WorldModel:
    server = load_plugins().server("mcp_notes")
    return anyio.run(world_of, server, "stdio", ToolsConfig()).model


def test_the_notebook_is_known_whole(notebook: WorldModel) -> None:
    note, tag = notebook.kinds["note"], notebook.kinds["tag"]
    assert note.plural == "notes" and note.complete and tag.complete
    fields = {name: (field.words, field.kind) for name, field in note.fields.items()}
    assert fields["text"] == ("text", "prose") and fields["tags"] == ("tags", "list")
    assert fields["words"] == ("words", "number")
    assert len(notebook.of_kind("note")) == 8 and len(notebook.of_kind("tag")) == 9
    slots = {(one.tool, one.parameter, one.kind, one.field) for one in notebook.slots}
    assert {("read_note", "id", "note", "id"), ("list_notes", "tag", "tag", "tag")} <= slots
    assert ("note", "tags", "tag") in {(one.kind, one.field, one.to) for one in notebook.references}


def test_what_calls_change_is_measured(notebook: WorldModel) -> None:
    found = {(one.tool, one.does, one.kind, one.field): one for one in notebook.effects}
    assert {
        ("create_note", "creates", "note", None),
        ("replace_text", "sets", "note", "text"),
        ("rename_note", "sets", "note", "title"),
        ("tag_note", "adds", "note", "tags"),
        ("untag_note", "takes", "note", "tags"),
        ("delete_note", "removes", "note", None),
    } == set(found)
    assert found["create_note", "creates", "note", None].valued_by.items() >= {"title": "title", "text": "text"}.items()
    tagging = found["tag_note", "adds", "note", "tags"]
    assert (tagging.keyed_by, tagging.valued_by) == ("id", {"tag": "tags"})
    assert tagging.example.keys() == {"id", "tag"}


def test_what_a_call_sets_or_copies_without_an_argument_for_it_is_measured() -> None:
    """A task is closed by a call that names it alone; a branch begins at the commit of another one."""
    fields = {
        "task": {"name": "text", "done": "flag", "list": "text", "seen": "time"},
        "branch": {"name": "text", "commit": "text"},
    }
    world = WorldModel(
        server="w", entities=(), observations=(), slots=(),
        kinds={
            kind: EntityKind(
                name=kind, plural=f"{kind}s", key="name", complete=True,
                fields={name: EntityField(name=name, words=name, kind=what) for name, what in named.items()},
            )
            for kind, named in fields.items()
        },
    )  # fmt: skip
    milk = {"name": "milk", "done": False, "list": "open", "seen": "2026-01-01"}
    branches = {"main": {"name": "main", "commit": "c2"}, "old": {"name": "old", "commit": "c1"}}
    before = SeenState({"task": {"milk": milk}, "branch": branches})
    closed = SeenState({"task": {"milk": {**milk, "done": True, "list": "closed"}}, "branch": branches})
    (effect, leaf), *others = compared(before, closed, [Leaf(("which",), "milk")], world)
    assert not others and leaf is not None
    assert (effect.does, effect.field, effect.value, effect.keyed_by) == ("sets", "done", True, "which")
    begun = SeenState({"task": {"milk": milk}, "branch": {**branches, "new": {"name": "new", "commit": "c1"}}})
    leaves = [Leaf(("branch_name",), "new"), Leaf(("base",), "old")]
    ((made, _),) = compared(before, begun, leaves, world)
    assert (made.does, made.valued_by, made.copies) == ("creates", {"branch_name": "name"}, {"base": "commit"})


@pytest.mark.parametrize(
    ("left", "arguments", "found"),
    [
        (["a", "a/1", "a/2", "c"], {"path": "b"}, ["removes"]),
        (["b", "c"], {"path": "a"}, ["removes"]),
        (["a", "c"], {"path": "a/1", "other": "a/2", "more": "b"}, ["removes"]),
        (["c"], {"remove": "a/1"}, []),
        (["new"], {"only": "new"}, []),
        (["new"], {"first": "new", "last": "c"}, []),
        (["a", "a/1", "a/2", "b", "c", "new"], {"path": "new"}, ["creates"]),
    ],
    ids=["one", "a folder", "two", "more", "replaced", "replaced with one that it names", "made"],
)
def test_a_call_with_which_others_are_gone_too_is_no_change_of_one_thing(
    left: list[str], arguments: dict[str, str], found: list[str]
) -> None:
    def state(paths: list[str]) -> SeenState:
        return SeenState({"file": {path: {"path": path} for path in paths}})

    path = EntityField(name="path", words="path", kind="text")
    kind = EntityKind(name="file", plural="files", key="path", complete=True, fields={"path": path})
    world = WorldModel(server="w", entities=(), observations=(), slots=(), kinds={"file": kind})
    leaves = [Leaf((parameter,), value) for parameter, value in arguments.items()]
    effects = compared(state(["a", "a/1", "a/2", "b", "c"]), state(left), leaves, world)
    assert [effect.does for effect, _ in effects] == found


@pytest.mark.parametrize(("cards", "found"), [(["d-1", "d-2"], ["sets"]), (["d-1"], [])], ids=["go along", "one lost"])
def test_what_hangs_on_a_thing_may_get_other_names_with_it(cards: list[str], found: list[str]) -> None:
    fields = {"name": EntityField(name="name", words="name", kind="text")}
    kinds = {
        noun: EntityKind(name=noun, plural=f"{noun}s", key="name", complete=True, fields=fields)
        for noun in ("board", "card")
    }
    world = WorldModel(server="w", entities=(), observations=(), slots=(), kinds=kinds)

    def state(board: str, cards: list[str]) -> SeenState:
        return SeenState({"board": {board: {"name": board}}, "card": {card: {"name": card} for card in cards}})

    leaves = [Leaf(("old",), "a"), Leaf(("new",), "d")]
    effects = compared(state("a", ["a-1", "a-2"]), state("d", cards), leaves, world)
    assert [effect.does for effect, _ in effects] == found


def test_a_history_in_lines_and_patches_is_a_world() -> None:
    world = built(command("history")).model
    assert {"change", "file"} <= set(world.kinds)
    words = {field.words: field.kind for field in world.kinds["change"].fields.values()}
    assert words["changed files"] == "list" and words["added lines"] == "number"
    assert words["email address of the author"] == "text"
    files = {one.key: one.facts["heading"].value for one in world.of_kind("file")}
    assert files == {"src/a.py": "To be kept", "ideas.txt": "Unknown files"}


def test_every_fact_is_shown_by_its_observations(notebook: WorldModel) -> None:
    for entity in notebook.entities:
        for fact in entity.facts.values():
            assert fact.shown_by
            for at in fact.shown_by:
                text = notebook.observations[at].text
                assert all(json.dumps(one)[1:-1] in text or str(one) in text
                           for one in (fact.value if isinstance(fact.value, list) else [fact.value]))  # fmt: skip


def test_results_about_one_thing_are_merged_and_clocks_left_out() -> None:
    world = built(command("library")).model
    assert set(world.kinds) == {"book", "author"}
    book = world.kinds["book"]
    assert set(book.fields) == {"isbn", "title", "author", "pages", "addedAt", "loan.seconds_left"}
    assert book.fields["addedAt"].words == "addition date" and book.fields["pages"].words == "pages"
    assert book.fields["loan.seconds_left"].kind == "number"
    dune = next(one for one in world.of_kind("book") if one.facts["title"].value == "Dune")
    shown = [world.observations[at] for at in dune.facts["pages"].shown_by]
    assert [(one.tool, one.arguments) for one in shown] == [("book_details", {"isbn": "b-42"})]
    assert [(one.kind, one.field, one.to) for one in world.references] == [("book", "author", "author")]
    assert {one.tool for one in world.slots} == {"book_details"}, "echo looks nothing up"
    assert {seen.lists for seen in world.observations if seen.lists} == {"book", "author"}


def test_a_hundred_thousand_things_give_a_bounded_model_and_a_sentence() -> None:
    found = built(command("many"))
    assert not found.model.kinds["part"].complete and 100 < len(found.model.entities) <= 300
    assert any("the server has more" in remark for remark in found.remarks)


def test_two_things_of_one_name_are_left_out_with_a_sentence() -> None:
    found = built(command("twins"))
    assert "Rex" not in {entity.key for entity in found.model.entities}
    assert not found.model.kinds["pet"].complete
    assert any("'Rex'" in remark for remark in found.remarks)


def test_ids_that_are_others_each_time_are_no_keys() -> None:
    model = built(command("passing")).model
    assert model.kinds["job"].key == "name" and set(model.kinds["job"].fields) == {"name"}
    assert [entity.key for entity in model.entities] == ["sweep", "mop", "dust"]


def test_a_thing_without_a_name_is_one_more_and_a_score_is_of_the_search() -> None:
    found = built(command("trees")).model
    tree = found.kinds["tree"]
    assert not tree.complete and {entity.key for entity in found.of_kind("tree")} >= {"Ash", "Elm", "Fir", "Oak", "Yew"}
    searches = [one for one in found.observations if one.tool == "search_trees"]
    assert len(searches) > 1 and "height" in tree.fields and "score" not in tree.fields


def test_prose_gives_an_empty_model_and_a_sentence() -> None:
    found = built(command("prose"))
    assert found.model.kinds == {} and found.model.entities == ()
    assert len(found.remarks) == 1 and "dark and stormy" in found.remarks[0]


def test_inspecting_shows_the_world_and_escapes_what_servers_write(capsys: Captured) -> None:
    assert main(["servers", "inspect", command("library"), "--world"]) == 0
    shown = capsys.readouterr().out
    assert "4 books, all shown by list_books" in shown and "3 authors" in shown
    assert "book_details takes the isbn of a book as isbn" in shown
    assert "\x1b" not in shown


def test_inspecting_gives_the_model_as_json(capsys: Captured) -> None:
    assert main(["servers", "inspect", command("library"), "--world", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.pop("remarks") == []
    assert len(WorldModel.model_validate(told).of_kind("book")) == 4


def test_a_model_is_collected_and_kept(tmp_path: Path) -> None:
    with collected_worlds() as worlds:
        model = built(command("twins")).model
    assert list(worlds.values()) == [model]
    save_world(model, tmp_path / "world.json")
    assert read_world(tmp_path / "world.json") == model
    (tmp_path / "world.json").write_text("{}")
    with pytest.raises(ScenarioError, match="holds no world model"):
        read_world(tmp_path / "world.json")
