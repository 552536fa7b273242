"""A synthetic company: people, projects, threads of mail, the facts that they hold, and questions about the facts.

The same seed and number give the same mail and the same questions. A project's facts stand in mail of that project
alone, each in one thread; some change later, so that the day of a question decides its answer. All questions about one
project are in one split.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

DOMAIN = "harbor.example"
BEGIN = datetime(2025, 1, 6, 8)
DAYS = 300
_FIRST = (
    "Ada Alan Amir Ana Anton Bela Boris Carla Cem Clara Dana David Dora Elena Emil Eva Felix Fiona Greta Hana Hugo "
    "Igor Ines Ivan Jana Jonas Julia Karim Kira Lara Leo Lina Luca Maja Marco Maria Mila Mona Nadia Nils Nina Noah "
    "Omar Oscar Paul Petra Rana Rita Robin Rosa Samir Sara Simon Sofia Stefan Tara Theo Tina Tom Uma Vera Victor Wanda "
    "Yara Yusuf Zoe"
).split()
_LAST = (
    "Adler Bauer Becker Berg Brandt Castro Chen Costa Cruz Diaz Dumont Eriksen Farah Fischer Flores Gomez Grant Haas "
    "Hansen Harris Hoffman Ito Jansen Keller Khan King Klein Kovac Lang Larsen Lopez Marin Meyer Mori Nagy Novak Olsen "
    "Park Perez Petrov Quinn Reyes Rossi Ruiz Sato Scott Silva Singh Stone Tanaka Torres Vega Vogel Walker Weber West "
    "Winter Wolf Young Zeman"
).split()
_ADJECTIVES = (
    "Amber Blue Bright Bronze Calm Clear Coral Crystal Dark Deep Early Eastern Fast Frozen Gentle Golden Grand Gray "
    "Green Hidden High Iron Ivory Jade Late Light Little Lone Lost Lunar Modern New Noble Northern Old Open Orange "
    "Prime Proud Purple Quick Quiet Rapid Red Royal Sharp Silent Silver Slow Small Solar Solid Southern Steady Still "
    "Strong Sunny Swift Tall True Upper Violet Warm Western White Wide Wild Winter Yellow Young"
).split()
_NOUNS = (
    "Anchor Arrow Atlas Bay Beacon Bear Bell Bird Bridge Brook Canyon Castle Cloud Coast Comet Crane Creek Crown Delta "
    "Eagle Echo Falcon Field Fire Flower Forest Fox Garden Gate Glacier Harbor Hawk Hill Horizon Island Lake Lantern "
    "Leaf Lion Maple Meadow Mill Moon Mountain Ocean Orbit Otter Owl Palm Panda Path Peak Pine Planet Pond Rain Raven "
    "Reef Ridge River Rock Rose Sail Shadow Shell Sky Spring Star Stone Storm Stream Summit Sun Tiger Tower Trail Tree "
    "Tulip Valley Wave Whale Willow Wind Wolf"
).split()
_CITIES = (
    "Oslo Lima Porto Vienna Prague Dublin Madrid Lisbon Zurich Athens Warsaw Berlin Milan Lyon Geneva Tokyo Seoul "
    "Boston Denver Austin Dallas Toronto Chicago Seattle Nairobi Cairo Delhi Sydney"
).split()
_FIRMS = (
    "Acme Apex Basalt Borealis Cobalt Dynamo Evergreen Fulcrum Granite Helix Indigo Juniper Keystone Lattice Meridian "
    "Nimbus Obsidian Pinnacle Quartz Redwood Sequoia Topaz Umbra Vertex Zenith"
).split()
_HOTELS = "Astoria Bristol Central Continental Grand Imperial Metropol Palace Plaza Regent Riviera Royal Savoy".split()
_CHATTER = (
    ("Lunch on {day}", "Shall we have lunch on {day}? The new place next to the station is said to be good."),
    ("Printer on floor {small}", "The printer on floor {small} is broken again. Somebody will look at it on {day}."),
    ("Notes from {day}", "Thank you all for coming on {day}. We agreed to meet again in two weeks."),
    ("Slides", "Here are the slides. Please send me your remarks before {day}."),
    ("Parking", "The parking deck is closed on {day}, since the floor is being painted."),
    ("Cake", "It is my last week before the holidays. There is cake in the kitchen on {day}."),
    ("Travel costs", "Please hand in your travel costs by {day}, or they will be paid next month."),
    ("Newsletter", "This month: {small} new colleagues, a new kitchen, and a summer party."),
    ("Your request", "I have seen your request and will come back to you on {day}."),
    ("Fire drill", "There is a fire drill on {day}. Please leave by the stairs, not by the lift."),
)
_WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday".split()
_CLOSINGS = (
    "Best, {me}", "Thanks, {me}", "{me}", "Regards\n{me}", "Let me know if you have questions.\n\n{me}",
    "Talk soon\n{me}",
)  # fmt: skip
_OPENINGS = ("Hi {you},", "Hello {you},", "Dear {you},", "{you},", "Hi all,")
_REPLIES = (
    "Thanks, noted.", "Good, I will tell the others.", "That works for me.", "Understood. Anything else?",
    "Great, thank you!", "Fine. I have put it in my calendar.",
)  # fmt: skip


@dataclass(frozen=True)
class Attribute:
    """A kind of fact: the words of a search for it, sentences that state it, and questions for it."""

    words: str
    kind: str
    """The verifier of the answer: "text", "number" or "time"."""
    statements: tuple[str, ...]
    asked: str
    """The question in the words of the mail."""
    otherwise: tuple[str, ...]
    """Questions in other words."""
    changes: bool = False


PROJECT_FACTS = (
    Attribute(
        "budget", "number",
        ("The budget of {of} is {value} euros.", "We have a budget of {value} euros for {of}."),
        "What is the budget of {of} in euros?",
        ("How much money may be spent on {of}?", "How many euros do we have for {of}?"), changes=True,
    ),
    Attribute(
        "deadline", "time",
        ("The deadline of {of} is {value}.", "{of} has its deadline on {value}."),
        "When is the deadline of {of}?",
        ("By which day must {of} be finished?", "When does {of} have to be done?"), changes=True,
    ),
    Attribute(
        "vendor", "text",
        ("The vendor for {of} is {value}.", "We chose {value} as the vendor for {of}."),
        "Which vendor was chosen for {of}?",
        ("Which company supplies us for {of}?", "Who delivers what we need for {of}?"), changes=True,
    ),
    Attribute(
        "lead", "text",
        ("The lead of {of} is {value}.", "{value} is the lead of {of} from now on."),
        "Who is the lead of {of}?",
        ("Who runs {of}?", "Who is in charge of {of}?"),
    ),
    Attribute(
        "room", "text",
        ("The project room of {of} is room {value}.", "{of} meets in room {value}."),
        "Which room does {of} have?",
        ("Where does the team of {of} meet?", "Where do I find the people of {of}?"), changes=True,
    ),
    Attribute(
        "launch city", "text",
        ("The launch city of {of} is {value}.", "{value} will be the launch city of {of}."),
        "What is the launch city of {of}?",
        ("Where will {of} start?", "In which town does {of} go live first?"),
    ),
    Attribute(
        "server", "text",
        ("The server of {of} is called {value}.", "{of} runs on the server {value}."),
        "What is the server of {of} called?",
        ("On which machine does {of} run?", "Which host is {of} on?"),
    ),
    Attribute(
        "invoice", "text",
        ("The invoice for {of} has the number {value}.", "{value} is the number of the invoice for {of}."),
        "Which number does the invoice for {of} have?",
        ("Under which number were we billed for {of}?", "Which bill did we get for {of}?"),
    ),
)  # fmt: skip
PERSON_FACTS = (
    Attribute(
        "phone extension", "number",
        ("The phone extension of {of} is {value}.", "{of} has the phone extension {value} now."),
        "What is the phone extension of {of}?",
        ("How can I call {of}?", "Which number do I dial for {of}?"),
    ),
    Attribute(
        "hotel", "text",
        ("The hotel of {of} is the {value}.", "{of} stays at the hotel {value}."),
        "Which hotel does {of} stay at?",
        ("Where does {of} sleep on the trip?", "Where can we pick up {of} in the morning?"),
    ),
    Attribute(
        "desk", "text",
        ("The desk of {of} is {value}.", "{of} has moved to desk {value}."),
        "Which desk does {of} have?",
        ("Where does {of} sit?", "Where do I find {of} in the office?"),
    ),
    Attribute(
        "badge", "number",
        ("The badge of {of} has the number {value}.", "{of} got the badge {value}."),
        "Which number does the badge of {of} have?",
        ("Which card opens the doors for {of}?",),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Person:
    name: str

    @property
    def address(self) -> str:
        return f"{self.name.lower().replace(' ', '.')}@{DOMAIN}"

    @property
    def first(self) -> str:
        return self.name.split()[0]


@dataclass(frozen=True)
class Letter:
    """A mail of the company."""

    number: int
    sent: datetime
    sender: Person
    to: tuple[Person, ...]
    subject: str
    body: str

    @property
    def message_id(self) -> str:
        return f"{self.number}@{DOMAIN}"


@dataclass
class Fact:
    """A fact about a project or a person: its values in the order of time, each with the mail that states it."""

    of: str
    attribute: Attribute
    told: list[tuple[str, Letter]]
    split: str


@dataclass
class Company:
    """The mail of a company and the facts in it."""

    people: list[Person]
    letters: list[Letter] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    missing: list[tuple[str, Attribute, str]] = field(default_factory=list)
    """Facts that no mail states: of what, which, and the split."""


def make_company(mails: int, seed: int) -> Company:
    """Make a company that has written `mails` mails, 100 or more."""
    draw = random.Random(f"company {seed} {mails}")
    names = [f"{first} {last}" for first in _FIRST for last in _LAST]
    company = Company([Person(name) for name in draw.sample(names, min(len(names), max(12, mails // 50)))])
    projects = [f"{adjective} {noun}" for adjective in _ADJECTIVES for noun in _NOUNS]
    draw.shuffle(projects)
    person_facts = [(person.name, attribute) for person in company.people for attribute in PERSON_FACTS]
    draw.shuffle(person_facts)
    splits = {person.name: _split(draw) for person in company.people}
    writer = _Writer(company, draw, mails)
    for number in range(min(len(projects), mails // 16)):
        writer.project(projects[number], _split(draw))
        for name, attribute in person_facts[number * 2 : number * 2 + 2]:
            writer.person(name, attribute, splits[name])
    while len(company.letters) < mails:
        writer.chat()
    del company.letters[mails:]
    return company


def _split(draw: random.Random) -> str:
    return draw.choices(("train", "val", "test"), (75, 17, 8))[0]


class _Writer:
    """Writes mail into a company; the numbers of mails are drawn, so that they say nothing of the order."""

    def __init__(self, company: Company, draw: random.Random, mails: int) -> None:
        self.company, self.draw = company, draw
        self.numbers = iter(draw.sample(range(1000, 1000 + max(9000, 4 * mails)), 2 * mails + 1000))

    def project(self, name: str, split: str) -> None:
        team = self.draw.sample(self.company.people, self.draw.randrange(3, 7))
        begin = self.moment(0, DAYS * 2 // 3)
        told = self.draw.sample(PROJECT_FACTS, 6)
        for attribute in PROJECT_FACTS:
            if attribute not in told:
                self.company.missing.append((name, attribute, split))
        for attribute in told:
            value = self.value(attribute, team)
            sent = begin + timedelta(hours=self.draw.randrange(24 * 30))
            letters = [(value, self.state(name, attribute, value, sent, team, f"{name}: {attribute.words}"))]
            if attribute.changes and self.draw.random() < 0.25:
                later = self.value(attribute, team)
                while later == value:
                    later = self.value(attribute, team)
                sent += timedelta(days=self.draw.randrange(5, 40))
                about = self.draw.choice((f"{name}: {attribute.words}", f"{name}: new {attribute.words}"))
                letters.append((later, self.state(name, attribute, later, sent, team, about, "There is news. ")))
            self.company.facts.append(Fact(name, attribute, letters, split))

    def person(self, name: str, attribute: Attribute, split: str) -> None:
        others = [person for person in self.draw.sample(self.company.people, 10) if person.name != name]
        value = self.value(attribute, others)
        subject = self.draw.choice((f"{name}: {attribute.words}", name, attribute.words.capitalize()))
        letter = self.state(name, attribute, value, self.moment(0, DAYS), others, subject)
        self.company.facts.append(Fact(name, attribute, [(value, letter)], split))

    def state(
        self,
        of: str,
        attribute: Attribute,
        value: str,
        sent: datetime,
        team: list[Person],
        subject: str,
        news: str = "",
    ) -> Letter:
        """Write a mail that states a fact, and often a reply that does not repeat it."""
        sender, *others = self.draw.sample(team, len(team))
        sentence = news + self.draw.choice(attribute.statements).format(of=of, value=value)
        letter = self.write(sent, sender, others, subject, sentence)
        for _ in range(self.draw.choice((0, 0, 1, 2))):
            sent += timedelta(minutes=self.draw.randrange(5, 2000))
            self.write(sent, others[0], [sender, *others[1:]], f"Re: {subject}", self.draw.choice(_REPLIES))
        return letter

    def chat(self) -> None:
        sender, *others = self.draw.sample(self.company.people, self.draw.randrange(2, 6))
        subject, text = self.draw.choice(_CHATTER)
        words = {"day": self.draw.choice(_WEEKDAYS), "small": self.draw.randrange(2, 9)}
        self.write(self.moment(0, DAYS), sender, others, subject.format(**words), text.format(**words))

    def write(self, sent: datetime, sender: Person, to: list[Person], subject: str, text: str) -> Letter:
        opening = self.draw.choice(_OPENINGS).format(you=to[0].first)
        closing = self.draw.choice(_CLOSINGS).format(me=sender.first)
        body = f"{opening}\n\n{text}\n\n{closing}"
        letter = Letter(next(self.numbers), sent, sender, tuple(to), subject, body)
        self.company.letters.append(letter)
        return letter

    def moment(self, first: int, last: int) -> datetime:
        return BEGIN + timedelta(days=self.draw.randrange(first, last), minutes=self.draw.randrange(600))

    def value(self, attribute: Attribute, team: list[Person]) -> str:
        draw = self.draw
        match attribute.words:
            case "budget":
                return str(draw.randrange(20, 990) * 100)
            case "deadline":
                return (BEGIN + timedelta(days=draw.randrange(100, 700))).strftime("%Y-%m-%d")
            case "vendor":
                return f"{draw.choice(_FIRMS)} {draw.choice(('Systems', 'Partners', 'Group', 'Labs'))}"
            case "lead":
                return draw.choice(team).name
            case "launch city":
                return draw.choice(_CITIES)
            case "hotel":
                return f"{draw.choice(_HOTELS)} {draw.choice(_CITIES)}"
            case "server":
                return f"{draw.choice(('web', 'app', 'db', 'node'))}-{draw.randrange(100, 999)}"
            case "invoice":
                return f"R-{draw.randrange(10_000, 99_999)}"
            case "room" | "desk":
                return f"{draw.choice('ABCDEFG')}{draw.randrange(100, 499)}"
        return str(draw.randrange(1000, 9999))


def questions(company: Company, seed: int) -> Iterator[dict[str, object]]:
    """Yield the questions on a company, shuffled: rows of the table of questions, with `extra` as an object.

    `extra` has `kind` (a verifier, or "none" for a question without an answer), `keywords` (one search for each hop),
    `about` (what is asked for), `hops` and `worded` ("mail": in the words of the mail; "other").
    """
    draw = random.Random(f"questions {seed} {len(company.letters)}")
    kept = {letter.number for letter in company.letters}
    rows = []
    by_name = {fact.of: fact for fact in company.facts if fact.attribute.words == "hotel"}
    extensions = {fact.of: fact for fact in company.facts if fact.attribute.words in ("phone extension", "desk")}
    for fact in company.facts:
        if not all(letter.number in kept for _, letter in fact.told):
            continue
        rows.append(_asked(draw, fact, plainly=draw.random() < 0.75))
        if fact.attribute.words == "lead":
            for second in (by_name.get(fact.told[-1][0]), extensions.get(fact.told[-1][0])):
                if second and second.told[0][1].number in kept:
                    rows += _two_hops(draw, fact, second)
    first = {fact.of: fact.told[0][1] for fact in company.facts}
    for of, attribute, split in company.missing:
        if draw.random() < 0.25 and first[of].number in kept:
            rows.append(_unanswerable(draw, of, attribute, split, first[of]))
    draw.shuffle(rows)
    seen: set[object] = set()
    for row in rows:
        if row["question"] not in seen:
            seen.add(row["question"])
            yield {"id": f"q{len(seen):05}", **row}


def _asked(draw: random.Random, fact: Fact, *, plainly: bool) -> dict[str, object]:
    """Return a question on one fact, on a day on which one of its values held."""
    attribute = fact.attribute
    which = draw.randrange(len(fact.told))
    value, letter = fact.told[which]
    first = letter.sent.date()
    last = fact.told[which + 1][1].sent.date() - timedelta(days=1) if which + 1 < len(fact.told) else None
    day = first + timedelta(days=draw.randrange(max(1, min(60, (last - first).days + 1 if last else 60))))
    if last is not None and last < first:  # both values on one day: only the later one can be asked for
        value, letter = fact.told[-1]
        day = letter.sent.date()
    wording = attribute.asked if plainly else draw.choice(attribute.otherwise)
    return {
        "question": wording.format(of=fact.of),
        "answer": value,
        "message_ids": [letter.message_id],
        "how_realistic": 0.5 if plainly else 0.7,
        "inbox_address": draw.choice((letter.sender, *letter.to)).address,
        "query_date": day.isoformat(),
        "split": fact.split,
        "extra": {
            "kind": attribute.kind,
            "keywords": [f"{fact.of} {attribute.words}"],
            "about": attribute.words,
            "hops": 1,
            "worded": "mail" if plainly else "other",
        },
    }


def _two_hops(draw: random.Random, lead: Fact, second: Fact) -> Iterator[dict[str, object]]:
    """Yield a question whose answer needs two mails, if one person has both."""
    first, last = lead.told[-1][1], second.told[-1][1]
    both = sorted({p.address for p in (first.sender, *first.to)} & {p.address for p in (last.sender, *last.to)})
    if not both:
        return
    yield {
        "question": second.attribute.asked.format(of=f"the lead of {lead.of}"),
        "answer": second.told[-1][0],
        "message_ids": [first.message_id, last.message_id],
        "how_realistic": 0.6,
        "inbox_address": draw.choice(both),
        "query_date": (max(first.sent, last.sent).date() + timedelta(days=draw.randrange(60))).isoformat(),
        "split": lead.split,
        "extra": {
            "kind": second.attribute.kind,
            "keywords": [f"{lead.of} lead", f"{lead.told[-1][0]} {second.attribute.words}"],
            "hops": 2,
            "worded": "mail",
            "about": second.attribute.words,
        },
    }


def _unanswerable(draw: random.Random, of: str, attribute: Attribute, split: str, letter: Letter) -> dict[str, object]:
    return {
        "question": attribute.asked.format(of=of),
        "answer": None,
        "message_ids": [],
        "how_realistic": 0.5,
        "inbox_address": draw.choice((letter.sender, *letter.to)).address,
        "query_date": (letter.sent.date() + timedelta(days=draw.randrange(60))).isoformat(),
        "split": split,
        "extra": {
            "kind": "none",
            "keywords": [f"{of} {attribute.words}"],
            "about": attribute.words,
            "hops": 1,
            "worded": "mail",
        },
    }
