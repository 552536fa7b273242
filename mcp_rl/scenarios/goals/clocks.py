"""Questions about the time in cities, for tools that convert a time from one zone to another.

All cities keep the same time all year, so that an answer holds on any day.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.explore.words import words_of
from mcp_rl.scenarios.goals.program import ProgramAnswer
from mcp_rl.scenarios.goals.reckoning import Reckoning

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from mcp_rl.scenarios.goals.twice import ReadingCall
    from mcp_rl.toolserver.tools.listing import Tool

CITIES = {
    "Honolulu": ("Pacific/Honolulu", -600), "Phoenix": ("America/Phoenix", -420),
    "Panama City": ("America/Panama", -300),
    "Bogotá": ("America/Bogota", -300), "Lima": ("America/Lima", -300), "Caracas": ("America/Caracas", -240),
    "Buenos Aires": ("America/Argentina/Buenos_Aires", -180),
    "Montevideo": ("America/Montevideo", -180), "Reykjavík": ("Atlantic/Reykjavik", 0), "Accra": ("Africa/Accra", 0),
    "Algiers": ("Africa/Algiers", 60), "Lagos": ("Africa/Lagos", 60), "Johannesburg": ("Africa/Johannesburg", 120),
    "Maputo": ("Africa/Maputo", 120), "Nairobi": ("Africa/Nairobi", 180), "Riyadh": ("Asia/Riyadh", 180),
    "Dubai": ("Asia/Dubai", 240), "Baku": ("Asia/Baku", 240), "Kabul": ("Asia/Kabul", 270),
    "Karachi": ("Asia/Karachi", 300), "Tashkent": ("Asia/Tashkent", 300), "Colombo": ("Asia/Colombo", 330),
    "Kolkata": ("Asia/Kolkata", 330), "Kathmandu": ("Asia/Kathmandu", 345), "Dhaka": ("Asia/Dhaka", 360),
    "Bangkok": ("Asia/Bangkok", 420), "Jakarta": ("Asia/Jakarta", 420), "Singapore": ("Asia/Singapore", 480),
    "Manila": ("Asia/Manila", 480), "Perth": ("Australia/Perth", 480), "Tokyo": ("Asia/Tokyo", 540),
    "Seoul": ("Asia/Seoul", 540), "Darwin": ("Australia/Darwin", 570), "Brisbane": ("Australia/Brisbane", 600),
}  # fmt: skip
"""Cities without summer time, with their zones and their minutes ahead of UTC."""
_ZONE = re.compile(r"\b(?:time ?zone|tz|zone)\b")
_FIRST = re.compile(r"\b(?:source|from|origin|start|in|input)\b")
_DAY = 24 * 60
_SHORTEST_FLIGHT, _LONGEST_TALK = 150, 240
"""In minutes."""


@dataclass(frozen=True)
class ClockTool:
    """A tool that converts a time of day, and its parameters."""

    tool: str
    source: str
    target: str
    time: str

    def call(self, one: str, minutes: int, other: str) -> ReadingCall:
        """Return the call for a time in one city and another city."""
        zones = {self.source: CITIES[one][0], self.target: CITIES[other][0]}
        return self.tool, {**zones, self.time: _clock(minutes)}

    def samples(self) -> list[tuple[ReadingCall, str]]:
        """Return probe calls for the tool, with the expected times."""
        pairs = [("Lima", 555, "Tokyo"), ("Kathmandu", 1205, "Accra")]
        return [(self.call(*one), _clock(_there(*one))) for one in pairs]

    def question(self, draw: random.Random, *, knowledge: bool = True) -> Reckoning | None:
        """Draw a question; without knowledge one that names time zones, with a time of day as a clock shows it."""
        if not knowledge:
            return self._between_zones(draw)
        makers = [*3 * [self._what_time], self._ahead, *3 * [self._arrival], self._furthest, self._first]
        return draw.choice(makers)(draw)

    def _what_time(self, draw: random.Random) -> Reckoning | None:
        one, other = draw.sample(list(CITIES), 2)
        at = 5 * draw.randrange(_DAY // 5)
        forms = (
            f"When it is {_spoken(at, draw)} in {one}, what time is it in {other}?",
            f"It is {_spoken(at, draw)} in {one}. What do the clocks in {other} show?",
            f"A friend in {one} rings me up when her clock says {_spoken(at, draw)}. What time is it here in {other} "
            "then?",
            f"In {one} a match begins at {_spoken(at, draw)}. At what time do I have to switch on the television in "
            f"{other}?",
        )
        there = _clock(_there(one, at, other))
        if CITIES[one][1] == CITIES[other][1]:
            return None
        return Reckoning(draw.choice(forms), "clock", "told", (self.call(one, at, other),), (there,),
                             ProgramAnswer(there, "time"))  # fmt: skip

    def _between_zones(self, draw: random.Random) -> Reckoning | None:
        one, other = draw.sample(list(CITIES), 2)
        at = 5 * draw.randrange(_DAY // 5)
        if CITIES[one][1] == CITIES[other][1]:
            return None
        here, there, zone, target = _clock(at), _clock(_there(one, at, other)), CITIES[one][0], CITIES[other][0]
        forms = (
            f"When it is {here} in {zone}, what time is it in {target}?",
            f"The clocks in {zone} show {here}. What do those in {target} show?",
            f"My time zone is {zone}, my brother's is {target}. He calls at {here} my time. What time is it for him?",
            f"What is {here} {zone} in {target} time?",
        )
        return Reckoning(draw.choice(forms), "clock", "told", (self.call(one, at, other),), (there,),
                             ProgramAnswer(there, "time"))  # fmt: skip

    def _ahead(self, draw: random.Random) -> Reckoning | None:
        one, other = draw.sample(list(CITIES), 2)
        gap = CITIES[other][1] - CITIES[one][1]
        if gap <= 0:
            return None
        forms = (
            f"By how many hours are the clocks in {other} ahead of those in {one}?",
            f"How many hours later is it in {other} than in {one}?",
        )
        return Reckoning(draw.choice(forms), "hours ahead", "told", (self.call(one, 0, other),),
                             (_clock(_there(one, 0, other)),), ProgramAnswer(gap / 60, "number"))  # fmt: skip

    def _arrival(self, draw: random.Random) -> Reckoning | None:
        one, other = draw.sample(list(CITIES), 2)
        at, takes = 5 * draw.randrange(_DAY // 5), 5 * draw.randrange(7, 170)
        if CITIES[one][1] == CITIES[other][1]:
            return None
        hours, minutes = divmod(takes, 60)
        long = f"{hours} hour{'s' * (hours != 1)} and {minutes} minutes" if hours and minutes else (
            f"{hours} hours" if hours > 1 else f"{takes} minutes")  # fmt: skip
        begin = _spoken(at, draw)
        forms = [f"In {one} it is {begin}. What will the clocks in {other} show {long} from now?"]
        if takes >= _SHORTEST_FLIGHT:
            forms.append(
                f"A plane leaves {one} at {begin}, as the clocks there say, and lands in {other} after {long}. What "
                "time is it there when it lands?"
            )
        if takes <= _LONGEST_TALK:
            forms.append(
                f"A talk begins at {begin} in {one} and goes on for {long}. What time is it in {other} when it is over?"
            )
        there = _clock(_there(one, at + takes, other))
        return Reckoning(draw.choice(forms), "arrival", "worked-out", (self.call(one, at, other),),
                             (_clock(_there(one, at, other)),), ProgramAnswer(there, "time"))  # fmt: skip

    def _furthest(self, draw: random.Random) -> Reckoning | None:
        home, *others = draw.sample(list(CITIES), 4)
        ranked = sorted(others, key=lambda city: CITIES[city][1])
        if CITIES[ranked[-1]][1] == CITIES[ranked[-2]][1] or CITIES[ranked[0]][1] <= CITIES[home][1]:
            return None
        gap = (CITIES[ranked[-1]][1] - CITIES[home][1]) / 60
        first, second, third = others
        forms = (
            f"Which of {first}, {second} and {third} is furthest ahead of {home} in time, and by how many hours?",
            f"Seen from {home}, where is it latest in the day: in {first}, in {second} or in {third}? Say also by how "
            "many hours.",
        )
        return Reckoning(
            draw.choice(forms), "furthest ahead", "worked-out",
            tuple(self.call(home, 0, city) for city in others),
            tuple(_clock(_there(home, 0, city)) for city in others),
            ProgramAnswer([ranked[-1], int(gap) if gap.is_integer() else gap], "pair"), tuple(ranked[:-1]),
        )  # fmt: skip

    def _first(self, draw: random.Random) -> Reckoning | None:
        one, other = draw.sample(list(CITIES), 2)
        opens, too = 15 * draw.randrange(28, 44), 15 * draw.randrange(28, 44)
        here, there = opens - CITIES[one][1], too - CITIES[other][1]
        if here == there or CITIES[one][1] == CITIES[other][1]:
            return None
        first, second = (one, other) if here < there else (other, one)
        text = (
            f"On one and the same date, a market in {one} opens at {_spoken(opens, draw)} and one in {other} at "
            f"{_spoken(too, draw)}, each by its own clock. In which city does it open first, and by how many minutes?"
        )
        return Reckoning(
            text, "opens first", "worked-out", (self.call(one, opens, other),), (_clock(_there(one, opens, other)),),
            ProgramAnswer([first, abs(here - there)], "pair"), (second,),
        )  # fmt: skip


def clocks_of(tool: Tool) -> Iterator[ClockTool]:
    """Yield a tool's way to convert times, if it takes two zones and a time of day and requires nothing else."""
    required = [str(name) for name in tool.input_schema.get("required") or []]
    zones = [name for name in required if _ZONE.search(words_of(name))]
    times = [name for name in required if name not in zones and re.search(r"\btime\b", words_of(name))]
    if len(required) != 3 or len(zones) != 2 or len(times) != 1:
        return
    first = [name for name in zones if _FIRST.search(words_of(name))]
    source = first[0] if len(first) == 1 else zones[0]
    yield ClockTool(tool.name, source, next(name for name in zones if name != source), times[0])


def shows_clock(text: str, clock: str) -> bool:
    """Return whether a result shows a time of day."""
    return re.search(rf"(?<![\d:]){clock}(?!\d)", text.replace("T", " ")) is not None


def _there(one: str, minutes: int, other: str) -> int:
    """Return the minute of the day in another city."""
    return (minutes - CITIES[one][1] + CITIES[other][1]) % _DAY


def _clock(minutes: int) -> str:
    hours, rest = divmod(minutes % _DAY, 60)
    return f"{hours:02}:{rest:02}"


_HOURS = ["twelve", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]


def _spoken(minutes: int, draw: random.Random) -> str:
    """Return a time of day as people write or say it."""
    hours, rest = divmod(minutes % _DAY, 60)
    if rest in (0, 15, 30, 45) and draw.random() < 0.5:
        part = "at night" if hours < 5 or hours >= 22 else "in the morning" if hours < 12 else (
            "in the afternoon" if hours < 18 else "in the evening")  # fmt: skip
        if (hours, rest) in ((0, 0), (12, 0)):
            return "midnight" if hours == 0 else "noon"
        word, following = _HOURS[hours % 12], _HOURS[(hours + 1) % 12]
        said = {0: f"{word} o'clock", 15: f"a quarter past {word}", 30: f"half past {word}",
                45: f"a quarter to {following}"}[rest]  # fmt: skip
        return f"{said} {part}"
    if draw.random() < 0.3:
        return f"{(hours - 1) % 12 + 1}:{rest:02} {'pm' if hours >= 12 else 'am'}"
    return _clock(minutes)
