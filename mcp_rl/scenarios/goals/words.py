"""English for kinds of things, their fields, and conditions on them.

Names of things and values are data: they stand in quotes, without control characters and without anything that a chat
template could take for its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mcp_rl.explore.entities.abbreviations import is_unclear
from mcp_rl.explore.entities.nouns import with_article
from mcp_rl.explore.words import words_of
from mcp_rl.scenarios.goals.deeds import Deed, deed_in
from mcp_rl.scenarios.goals.phrases import counted, is_plural, joined, of_another, plural, singular
from mcp_rl.scenarios.goals.program import ChosenThings, Condition, naming
from mcp_rl.scenarios.goals.values import shown
from mcp_rl.scenarios.quoting import quoted_text

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import EntityField, WorldModel
    from mcp_rl.scenarios.goals.program import FactName

_SCHEMA_WORDS = frozenset(
    "id ids uuid guid sha hash url uri href mime json etag cursor slug ref oid index idx inode mode raw html "  # noqa: SIM905
    "diff patch ctime mtime atime permissions metadata schema payload param params arg args kwargs enum null boolean "
    "str int obj relation relations".split()
)
"""Words that only programs use for a field."""
_LANGUAGES = frozenset("en de fr es ja zh ko pt ru ar hi tr nl pl sv da fi cs uk".split())  # noqa: SIM905
"""Codes of languages at the end of a field's name, which nobody says: "the title ja"."""
_LABELS = ("tag", "label", "keyword", "topic", "category", "genre")
_CONTENTS = ("text", "content", "contents", "body", "message", "description", "summary", "lyrics", "story")
_PLACES = ("folder", "directory", "parent", "parent folder", "list", "project", "board", "section", "album", "playlist")
_ADJECTIVES = (
    "done", "completed", "complete", "finished", "archived", "active", "inactive", "pinned", "public", "private",
    "closed", "open", "enabled", "disabled", "empty", "available", "paid", "urgent", "read", "unread", "starred",
    "published", "locked", "current", "hidden", "overdue", "favourite", "favorite", "free", "returned", "sold",
)  # fmt: skip
PEOPLE = frozenset(
    "owner author creator manager leader lead assignee employer maker visitor user teacher artist writer editor "  # noqa: SIM905
    "reviewer sender recipient customer spouse person member employee colleague friend boss client student patient "
    "contact player doctor engineer guest driver keeper passenger attendee reporter child parent tutor founder".split()
)
"""Nouns for people, whose questions use "who"."""
_GROUPS = ("category", "department", "group", "class", "section", "genre", "region", "country", "town")
_LONGEST_VALUE = 80
PAST = re.compile(r"[a-z]{3,}ed|built|made|born|begun|bought|written|sold|sunk|found")
"""A participle that says what was done in a year."""
_MASSES = frozenset(
    "protein fat fibre fiber sugar salt sodium potassium iron calcium caffeine alcohol cholesterol energy water memory "  # noqa: SIM905
    "space storage money funding revenue income profit debt experience traffic".split()
)
"""Words for fields of numbers that say how much of something a thing has."""
_NO_NOUNS = frozenset("since until from by per at in on to of for with about after before is was has had not".split())  # noqa: SIM905
"""Words at the end of a field's name after which no noun phrase can be made."""

_NO_BEGINNINGS = frozenset("when how why what where who which is are has have can to if use not no".split())  # noqa: SIM905
"""Words at the beginning of one, of which the same is true: "when to use"."""
_VERBS = frozenset("requires includes contains allows provides depends extends implements applies".split())  # noqa: SIM905
"""Verbs that look like plurals."""

Sort = Literal["name", "label", "contents", "place", "count", "mass", "size", "age", "length", "cost", "changed",
               "created", "due", "dated", "year", "deed", "list", "flag", "number", "time", "text"]  # fmt: skip
"""What a field is to a speaker, which decides how it is asked for."""


def quoted(value: JsonValue) -> str:
    """Return a value as it stands in a request: text in quotes, everything else bare."""
    if not isinstance(value, str):
        return shown(value)
    return quoted_text(value)


def predicate(said: str) -> str | None:
    """Phrase a condition as a plural predicate, as in "have more than 15 words"; None if it has no such form."""
    for begin, verb in (("that ", ""), ("without ", "do not have "), ("with ", "have ")):
        if said.startswith(begin):
            return None if said.startswith("with") and " that " in said else verb + said.removeprefix(begin)
    if said.startswith(("whose", "in which")):
        return None
    done = re.match(r"(?:last )?(\w+) (?:after|before) ", said)
    return f"were {said}" if done and PAST.fullmatch(done[1]) and done[1] != "dated" else f"are {said}"


def can_be_said(value: JsonValue) -> bool:
    """Return whether a person would write this value into a request."""
    if isinstance(value, str):
        return bool(value.strip()) and len(value) <= _LONGEST_VALUE and "\n" not in value
    return isinstance(value, int | float)


def are_plain(words: Sequence[str]) -> bool:
    """Return whether these are words that people use."""
    return bool(words) and all(
        re.fullmatch(r"[a-z]{2,}", word) and word not in _SCHEMA_WORDS and not is_unclear(word) for word in words
    )


def make_a_noun(words: Sequence[str]) -> bool:
    """Return whether the words of a field's name can be a noun phrase."""
    return not words or (words[0] not in _NO_BEGINNINGS and words[-1] not in _NO_NOUNS | _VERBS | _LANGUAGES)


def is_address(value: JsonValue) -> bool:
    """Return whether a value is the address of a page."""
    return isinstance(value, str) and re.match(r"[a-z][a-z0-9+.-]*://", value) is not None


@dataclass(frozen=True)
class SpokenCondition:
    """A condition in words, after a noun, with the verb in the singular and in the plural."""

    one: str
    several: str


class English:
    """Says the kinds, fields and conditions of one world. Every choice of words is drawn from `random`."""

    def __init__(self, world: WorldModel, random: random.Random) -> None:
        self.world = world
        self.random = random
        self._names = {kind: naming(world, kind) for kind in world.kinds}
        self._usable: dict[tuple[str, str], bool] = {}
        self._named_by = {
            (reference.kind, reference.field, str(one.key)): (reference.to, str(one.key), name)
            for reference in world.references
            if reference.to in world.kinds and (name := self._names[reference.to][0])
            for one in world.of_kind(reference.to)
            if name in one.facts and one.facts[name].value != one.key
        }
        self._spoken = {
            (reference.kind, reference.field, str(one.key)): one.facts[name].value
            for reference in world.references
            if reference.to in world.kinds and (name := self._names[reference.to][0])
            for one in world.of_kind(reference.to)
            if name in one.facts
        }

    def pick(self, forms: Sequence[str]) -> str:
        return self.random.choice(forms)

    def name_field(self, kind: str) -> str:
        return self._names[kind][0]

    def naming(self, kind: str) -> list[str]:
        return self._names[kind]

    def noun(self, kind: str) -> str:
        return self.world.kinds[kind].name.replace("_", " ")

    def plural(self, kind: str) -> str:
        return self.world.kinds[kind].plural.replace("_", " ")

    def numbered(self, kind: str) -> bool:
        """Return whether the things of a kind are named by numbers."""
        name = self.name_field(kind)
        return all(name in one.facts and not isinstance(one.facts[name].value, str) for one in self.world.of_kind(kind))

    def is_person(self, kind: str) -> bool:
        return self.noun(kind) in PEOPLE

    def about(self, kind: str, name: str) -> EntityField:
        return self.world.kinds[kind].fields[name]

    def words(self, kind: str, name: str) -> str:
        """Return a noun phrase for a field; the field that is called as its kind, as the tag of a tag, is its name."""
        words = self.about(kind, name).words.strip() or words_of(name)
        if not words.isascii():
            return f"value{'s' * (self.about(kind, name).kind == 'list')} of {quoted(name)}"  # no word of English
        if words == self.noun(kind):
            return "name"
        return plural(words) if self.about(kind, name).kind == "list" else words.removeprefix("number of ")

    def relative(self, kind: str, said: str) -> str:
        """Return a condition after its noun, with "who" for people: "people who have more than 3 friends"."""
        return re.sub(r"^that ", "who ", said) if self.is_person(kind) else said

    def place(self, kind: str, words: str) -> str:
        """Return the noun for a place: the parent folder of things is the folder that they are in."""
        return self.noun(kind) if words == "parent" else words.removeprefix("parent ")

    def usable(self, kind: str, name: str) -> bool:
        """Return whether people have a word for a field."""
        if (kind, name) not in self._usable:
            self._usable[kind, name] = self._has_words(kind, name)
        return self._usable[kind, name]

    def _has_words(self, kind: str, name: str) -> bool:
        if not self.about(kind, name).words.isascii():
            return not self._repeats(kind, name) and self.about(kind, name).kind != "flag"
        words = self.words(kind, name).lower().split()
        if not make_a_noun(words):
            return False
        if words and words_of(name).split(" ")[-1] in ("url", "uri", "href"):
            return False  # an address is where a thing is read, and nothing of it
        if words and words[-1] == "path" and name not in self._names[kind][:1]:
            return False  # its name says enough
        if self._repeats(kind, name):
            return False
        return are_plain(words) and (self.sort(kind, name) != "flag" or words[-1] in _ADJECTIVES)

    def _repeats(self, kind: str, name: str) -> bool:
        """Return whether a field tells only what every thing is called, or what another tells in fewer words."""
        words, fields = self.words(kind, name), self.world.kinds[kind].fields
        shorter = [(one, said) for one in fields if (said := self.words(kind, one))]
        others = [one for one, said in shorter if words.endswith(f" {said}") or words.startswith(f"{said} ")]
        others += [self.name_field(kind)] * (name != self.name_field(kind))
        return any(self._are_equal(kind, name, other) for other in others)

    def _are_equal(self, kind: str, name: str, other: str) -> bool:
        facts = [one.facts for one in self.world.of_kind(kind) if {name, other} <= one.facts.keys()]
        return bool(facts) and all(one[name].value == one[other].value for one in facts)

    def sort(self, kind: str, name: str) -> Sort:
        """Return what a field is to a speaker."""
        field, words = self.about(kind, name), self.words(kind, name).lower()
        if field.kind in ("list", "number") and deed_in(words) is not None:
            return "deed"
        last = words.split()[-1] if words else ""
        match field.kind:
            case "list":
                return "label" if singular(last) in _LABELS else "list"
            case "flag":
                return "flag"
            case "prose":
                return "contents"
            case "number":
                if last in ("size", "bytes"):
                    return "size"
                if last in ("duration", "length"):
                    return "length"
                if last == "age":
                    return "age"
                if last in ("price", "cost"):
                    return "cost"
                if is_plural(words):
                    return "count"
                if words in _MASSES:
                    return "mass"
                return "year" if self._holds_years(kind, name) else "number"
            case "time":
                for hint, sort in _TIMES:
                    if re.search(hint, words):
                        return sort
                return "time"
        if name in self._names[kind][:1]:
            return "name"
        return "contents" if last in _CONTENTS else "place" if words in _PLACES else "text"

    def are_whole(self, kind: str, name: str) -> bool:
        """Return whether all numbers in a field are whole and none is negative."""
        values = [one.facts[name].value for one in self.world.of_kind(kind) if name in one.facts]
        return all(isinstance(value, int | float) and value >= 0 and float(value).is_integer() for value in values)

    def _holds_years(self, kind: str, name: str) -> bool:
        """Return whether a field says in which years something was: "built", "year"."""
        words = self.words(kind, name).lower().split()
        if words[-1:] != ["year"] and (len(words) != 1 or PAST.fullmatch(words[0]) is None):
            return False
        values = [one.facts[name].value for one in self.world.of_kind(kind) if name in one.facts]
        return bool(values) and all(isinstance(value, int) and 1000 <= value <= 2200 for value in values)

    def deed(self, kind: str, name: str) -> Deed:
        """Return what a field of the sort "deed" says that things did."""
        found = deed_in(self.words(kind, name).lower())
        assert found is not None
        return found

    # Conditions

    def condition(self, kind: str, condition: Condition) -> SpokenCondition:
        """Say a condition after a noun of its kind, such as "with more than 15 words"."""
        if condition.through:
            to = next(r.to for r in self.world.references if (r.kind, r.field) == (kind, condition.through))
            inner = self.condition(to, Condition(condition.field, condition.relation, condition.value))
            said = of_another(singular(self.words(kind, condition.through)), inner.one)
            return SpokenCondition(said, said)
        return self._chosen(list(self._conditions(kind, condition)))

    def spoken(self, kind: str, name: str, value: JsonValue) -> JsonValue:
        """Return a value as people say it: of a thing that is referred to, its name instead of its key."""
        return self._spoken.get((kind, name, str(value)), value)

    def refers(self, kind: str, name: str) -> bool:
        """Return whether a field holds keys for which people say names: parts of such a key mean nothing."""
        things = self.world.of_kind(kind)[:1]
        return any(self.named_by(kind, name, one.facts[name].value) is not None for one in things if name in one.facts)

    def named_by(self, kind: str, name: str, value: JsonValue) -> FactName | None:
        """Return the fact that tells the name of a thing that is referred to; None where its key is its name."""
        return self._named_by.get((kind, name, str(value)))

    def _chosen(self, forms: list[tuple[str, str]]) -> SpokenCondition:
        return SpokenCondition(*self.random.choice(forms))

    def _conditions(self, kind: str, condition: Condition) -> list[tuple[str, str]]:
        spoken = self.spoken(kind, condition.field, condition.value)
        words, value = self.words(kind, condition.field), quoted(spoken)
        sort = self.sort(kind, condition.field)
        if sort == "deed":
            return self._deeds(self.deed(kind, condition.field), condition, value)
        match condition.relation:
            case "has":
                one = singular(words)
                if sort == "label" and one in ("tag", "label"):
                    verb = "tagged" if one == "tag" else "labelled"
                    return [
                        *_both([f"{verb} {value}", f"with the {one} {value}"]),
                        (f"that carries the {one} {value}", f"that carry the {one} {value}"),
                        (f"that is {verb} {value}", f"that are {verb} {value}"),
                    ]
                return [
                    (f"with {value} among its {words}", f"with {value} among their {words}"),
                    (f"whose {words} include {value}", f"whose {words} include {value}"),
                ]
            case "lacks":
                one = singular(words)
                if sort == "label":
                    return [
                        (f"without the {one} {value}", f"without the {one} {value}"),
                        (f"that does not have the {one} {value}", f"that do not have the {one} {value}"),
                    ]
                return _both([f"whose {words} do not include {value}"])
            case "holds":
                if sort in ("list", "label"):
                    one = singular(words)
                    has = f"with {with_article(one)} that mentions {value}"
                    mentioning = f"{with_article(one)} mentioning {value}"
                    return [(has, has), (f"that has {mentioning}", f"that have {mentioning}")]
                if sort == "contents":
                    return (
                        [
                            (f"that mentions {value}", f"that mention {value}"),
                            (f"in which the word {value} occurs", f"in which the word {value} occurs"),
                            (f"whose {words} mentions {value}", f"whose {words} mentions {value}"),
                        ]
                        if not is_plural(words)
                        else [(f"that mentions {value}", f"that mention {value}")]
                    )
                its = [] if self.is_person(kind) else [(f"with {value} in its {words}",
                                                        f"with {value} in their {plural(words)}")]  # fmt: skip
                return [*its, (f"whose {words} contains {value}", f"whose {plural(words)} contain {value}")]
            case "ends":
                return [
                    (f"whose {words} ends in {value}", f"whose {plural(words)} end in {value}"),
                    (f"with {with_article(words)} that ends in {value}", f"with {plural(words)} that end in {value}"),
                ]
            case "is":
                return self._equalities(kind, sort, words, value, condition.value)
            case "above" | "below":
                return self._inequalities(kind, condition, sort, words)
        raise AssertionError(condition.relation)

    def _deeds(self, deed: Deed, condition: Condition, value: str) -> list[tuple[str, str]]:
        match condition.relation:
            case "has":
                return _both([f"that {deed.past} {value}", f"that {deed.past} the {deed.object} {value}"])
            case "lacks":
                return _both([f"that did not {deed.verb} {value}"])
            case "above" | "below":
                than = "more than" if condition.relation == "above" else "fewer than"
                return _both([f"that {deed.past} {than} {deed.counted(value)}"])
            case "is":
                return _both([f"that {deed.past} exactly {deed.counted(value)}"])
        return _both([f"that {deed.past} {with_article(deed.object)} with {value} in its name"])

    def _equalities(self, kind: str, sort: Sort, words: str, value: str, raw: JsonValue) -> list[tuple[str, str]]:
        if sort == "flag":
            adjective = words.split()[-1]
            no = "" if raw is True else "not "
            return [(f"that is {no}{adjective}", f"that are {no}{adjective}")]
        if sort == "place":
            return _both([f"in the {self.place(kind, words)} {value}"])
        if words in ("heading", "mark"):
            return _both([f"listed under {value}"] if words == "heading" else [f"marked {value}"])
        if words in _GROUPS:
            return _both([f"in the {words} {value}"])
        if words == "city":
            return _both([f"in the city of {value}", f"whose {words} is {value}"])
        if sort == "count":
            if raw == 0:
                return self._without_any(words)
            return _both([f"with exactly {counted(raw, words)}"])
        if words in ("author", "creator", "artist", "writer"):
            return _both([f"by {value}"])
        if sort == "name":
            return _both([f"called {value}", f"with the {words} {value}"] if isinstance(raw, str) else [f"{value}"])
        return _both([f"whose {words} is {value}", f"with the {words} {value}"])

    def _inequalities(self, kind: str, condition: Condition, sort: Sort, words: str) -> list[tuple[str, str]]:
        more, value = condition.relation == "above", shown(condition.value)
        unit = self.about(kind, condition.field).unit
        measured = f"{value} {unit}" if unit and unit.lower() not in words.lower() else value
        if sort == "count":
            if condition.value == (0 if more else 1) and self.are_whole(kind, condition.field):
                return self._with_any(words) if more else self._without_any(words)
            than = f"{'more' if more else 'fewer'} than {counted(condition.value, words)}"
            return [*_both([f"with {than}"]), (f"that has {than}", f"that have {than}")]
        if sort == "mass":
            than = f"{'more' if more else 'less'} than {measured} {'of ' * bool(unit)}{words}"
            return [*_both([f"with {than}"]), (f"that has {than}", f"that have {than}")]
        if sort == "size":
            size = measured if unit else f"{value} bytes" if "byte" in words else value
            return [
                (f"that is {'larger' if more else 'smaller'} than {size}",
                 f"that are {'larger' if more else 'smaller'} than {size}"),
            ]  # fmt: skip
        if sort in ("length", "age"):
            than = {"length": ("longer", "shorter"), "age": ("older", "younger")}[sort][0 if more else 1]
            return [(f"that is {than} than {measured}", f"that are {than} than {measured}")]
        if sort == "cost":
            return [(f"that costs {'more' if more else 'less'} than {measured}",
                     f"that cost {'more' if more else 'less'} than {measured}")]  # fmt: skip
        after = "after" if more else "before"
        match sort:
            case "changed":
                changed = f"last changed {after} {value}"
                return [*_both([changed]), (f"that was {changed}", f"that were {changed}")]
            case "created":
                created = f"created {after} {value}"
                return [*_both([f"made {after} {value}"]), (f"that was {created}", f"that were {created}")]
            case "due":
                due = f"due {after} {value}"
                return [*_both([due]), (f"that is {due}", f"that are {due}")]
            case "dated":
                return [(f"dated {after} {value}",) * 2]
            case "year" if PAST.fullmatch(words):
                return [*_both([f"{words} {after} {value}"]), (f"that was {words} {after} {value}",
                                                               f"that were {words} {after} {value}")]  # fmt: skip
            case "year":
                return _both([f"whose {words} is {after} {value}"])
            case "time":
                return _both([f"whose {words} is {after} {value}"])
        with_a = (
            [f"with {with_article(words)} of {'more' if more else 'less'} than {measured}"] if condition.value else []
        )
        return _both([f"whose {words} is {'above' if more else 'below'} {measured}", *with_a])

    def _with_any(self, words: str) -> list[tuple[str, str]]:
        one = f"at least one {singular(words)}"
        return [*_both([f"with {one}"]), (f"that has {one}", f"that have {one}"),
                (f"that has {one}", f"that have any {words}")]  # fmt: skip

    def _without_any(self, words: str) -> list[tuple[str, str]]:
        return [*_both([f"without any {words}"]), (f"that has no {words}", f"that have no {words}")]

    def things(self, things: ChosenThings, *, one: bool = False) -> str:
        """Say the things selected, without an article: "notes tagged 'home'", or "note tagged 'home'" for `one`."""
        noun = self.noun(things.kind) if one else self.plural(things.kind)
        said = [self.condition(things.kind, each) for each in things.conditions]
        forms = [each.one if one else each.several for each in said]
        conditions = [self.relative(things.kind, form) for form in forms]
        return f"{noun}{joined(conditions, several=not one, person=self.is_person(things.kind))}"

    def the_one(self, things: ChosenThings) -> str:
        """Say the one thing selected: "the note 'Trip'", "the note that mentions 'pears'"."""
        first = things.conditions[0] if things.conditions else None
        if first and len(things.conditions) == 1 and first.relation == "is" and first.field in self._names[things.kind]:
            noun, name = self.noun(things.kind), quoted(first.value)
            if not isinstance(first.value, str):
                return self.pick([f"{noun} {name}", f"{noun} number {name}"])
            if is_address(first.value):
                if noun == "page":
                    return f"the page {name}"
                return self.pick([f"the {noun} on the page {name}", f"the {noun} described at {name}"])
            if self.is_person(things.kind):
                return self.pick([f"the {noun} {name}", name])
            forms = [f"the {noun} {name}", f"the {noun} called {name}"]
            return self.pick(forms[: 1 if self.words(things.kind, first.field).endswith("path") else 2])
        return f"the {self.things(things, one=True)}"


def sentence(text: str) -> str:
    """Return the text with a capital letter at its beginning, and one space between words."""
    text = re.sub(r"(?<=[.!?])(['\"])\.(?= |$)", r"\1", re.sub(r" +", " ", text).strip())
    return text[:1].upper() + text[1:]


_TIMES: tuple[tuple[str, Sort], ...] = (
    (r"modif|chang|updat|edit", "changed"),
    (r"creat|made|added|built|birth", "created"),
    (r"\bdue\b|deadline", "due"),
    (r"^(?:date|day)$", "dated"),
)


def _both(forms: Sequence[str]) -> list[tuple[str, str]]:
    return [(form, form) for form in forms]
