"""Headlines without a tool server: posts as scenarios, and a reward that reads the headline and its post.

    mcp-rl train --server none --source headlines

The posts are made up. Yours are a file of JSON Lines, read by the mapping of docs/questions.md. docs/headlines.md
explains the choices.
"""

import random
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.rewards.verdict import Verdict
from mcp_rl.scenario import McpScenario, ServerParams, Verifier
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.trajectory import Trajectory

REQUEST = "Write a headline for this post.\n\n{text}"
FEWEST, MOST = 4, 12
"""Words of a headline."""
QUESTIONS = ("length", "words_of_the_post", "phrases_of_the_post", "plain_line", "names_it")
"""The metrics of a headline, from 0 to 1 each."""
_BAIT = re.compile(
    r"\b(?:you won't believe|this is why|here is why|here's why|the reason why|what happened next|changes everything"
    r"|game[- ]changer|mind[- ]blowing|shocking|must[- ]see|insane|unbelievable|secret)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]+(?:[.'\u2019-][^\W_]+)*")
_SMALL = frozenset(("and", "are", "for", "from", "has", "how", "its", "not", "the", "was", "why", "with", "that"))
"""Words that a headline may hold although its post does not. All words of one or two letters may be added too."""


# Scenarios


def headlines(sessions: object, *, server: ToolServer, params: ServerParams, recipe: Recipe) -> list[McpScenario]:
    """Return made-up posts, each of which wants a headline in one turn."""
    draw, posts = random.Random(f"headlines {recipe.seed}"), dict[str, str]()
    while len(posts) < recipe.count:  # millions of different posts can be made
        text, title = made_up_post(draw)
        posts[text] = title
    return [
        McpScenario(
            task_description=REQUEST.format(text=text),
            server_params=params,
            server=server.name,
            max_turns=1,
            level="told",
            reference_answer=title,
            verifier=Verifier(kind="headline"),
        )
        for text, title in posts.items()
    ]


_PEOPLE = "Ada Bruno Carla David Elena Felix Greta Hugo Irene Jonas Karin Lars Maria Nina Oscar Petra".split()  # noqa: SIM905
_NAMES = "Quartz Harbor Meadow Lantern Copper Willow Summit Ember Falcon Juniper Marble Cedar Anchor Prairie".split()  # noqa: SIM905
_THINGS = (
    "a build tool", "a text editor", "a search engine", "a web server", "a game engine", "a mail client",
    "a database", "a test runner", "a map viewer", "a music player", "a calendar", "a backup tool",
)  # fmt: skip
_LANGUAGES = ("Rust", "Python", "Go", "Java", "C", "Swift")
_NEWS = (
    ("{name} {version} is {thing} written in {language}.", "{name} {version}, {thing} written in {language}"),
    ("{person} has released {name} {version}, {thing} in {language}.", "{name} {version}, {thing} in {language}"),
    ("Today {name} reached version {version}. It is {thing} for {language}.", "{name} reached version {version}"),
    (
        "Our team moved {name}, {thing}, from {language} to version {version}.",
        "{name}, {thing}, moved to version {version}",
    ),
)
"""Pairs of a post's first sentence and its headline, with placeholders for the words."""
_GAINS = (
    "uses half the memory", "starts twice as fast", "reads files of any size", "works without a network",
    "runs on old phones", "needs no account", "keeps all data on the disk", "finds errors in seconds",
)  # fmt: skip
_ENDS = (
    "The code is open.", "The first users report few problems.", "A paper explains the design.",
    "Work on it took two years.", "It costs nothing.", "Questions are welcome.",
)  # fmt: skip


def made_up_post(draw: random.Random) -> tuple[str, str]:
    """Return a post of three or four sentences on a program that somebody made, and a headline for it."""
    name, thing, language = draw.choice(_NAMES), draw.choice(_THINGS), draw.choice(_LANGUAGES)
    version = f"{draw.randrange(1, 9)}.{draw.randrange(10)}"
    told, title = draw.choice(_NEWS)
    words = {"name": name, "version": version, "thing": thing, "language": language, "person": draw.choice(_PEOPLE)}
    text = f"{told.format(**words)} It {draw.choice(_GAINS)}. {draw.choice(_ENDS)}"
    return text, title.format(**words)


# Reward


def headline(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Score the final message as a headline of the post in the request: 1 if nothing is wrong with it.

    Four questions count a quarter each: do its words come from the post, do its phrases, is it a plain line without the
    marks of clickbait, and does it name what the post names? All of it falls with each word below 4 or above 12.
    """
    said = (trajectory.final_answer or "").strip()
    post = scenario.task_description.partition("\n\n")[2] or scenario.task_description
    words, known = _words(said), _words(post)
    if not words:
        return Verdict(0.0, "There is no headline.", dict.fromkeys(QUESTIONS, 0.0))
    beyond = max(FEWEST - len(words), len(words) - MOST, 0)
    telling = [word for word in words if (len(word) > 2 and word not in _SMALL) or word[0].isdigit()]
    found = len(set(telling) & set(known)) / max(1, len(telling))  # a word said twice counts once
    pairs, theirs = list(pairwise(words)), set(pairwise(known))
    phrases = 2 * sum(pair in theirs for pair in pairs) / max(1, len(pairs))
    names = {word.casefold() for word in names_of(post)}
    shares = (
        max(0.0, 1 - beyond / 8),
        found,
        min(1.0, phrases),
        float(not _marks(said)),
        float(not names or bool(names & set(words))),
    )
    wrong = [name.replace("_", " ") for name, share in zip(QUESTIONS, shares, strict=True) if share < 1]
    why = f"Not right: {', '.join(wrong)}." if wrong else "Nothing is wrong with it."
    return Verdict(shares[0] * sum(shares[1:]) / 4, why, dict(zip(QUESTIONS, shares, strict=True)))


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def names_of(post: str) -> set[str]:
    """Return the words of a post that begin with a capital or hold a digit, but for those that begin a sentence."""
    found = re.finditer(r"(?<![.!?]\s)(?<!^)\b(?:[A-Z][\w'\u2019-]*|\d[\w.]*\w)", post)
    return {match[0].rstrip(".") for match in found}


def _marks(said: str) -> bool:
    """Return whether a line has the marks of clickbait, of markup or of an ordinary sentence."""
    letters = [sign for sign in said if sign.isalpha()]
    loud = len(letters) > 8 and sum(map(str.isupper, letters)) > 0.7 * len(letters)
    return loud or bool(_BAIT.search(said)) or bool(re.search(r"[!?*_#<>{}\[\]\n]|\.$|^[\"“'].*[\"”']$", said))


# Plugin


@hookimpl
def register_scenario_sources(register: Callable[[str, Any], None]) -> None:
    register("headlines", headlines)


@hookimpl
def register_verifiers(register: Callable[[str, Any], None]) -> None:
    register("headline", headline)
