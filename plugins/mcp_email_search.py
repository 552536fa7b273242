"""Offers the bundled inbox: questions about mail as scenarios, and the verifier of their answers.

The mail is in a database that `servers/python/mcp_email_search/build_db.py` makes. Where there is none, a small one of
a made-up company is built at the first use. docs/email_search.md explains the choices.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

from mcp_rl.config import level_shares
from mcp_rl.errors import ScenarioError
from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.rewards.answers import normalised
from mcp_rl.rewards.verdict import Verdict, nothing_submitted, submitted, successful_calls
from mcp_rl.rewards.verifier import BUILT_IN
from mcp_rl.scenario import Level, McpScenario, ServerParams, StdioServer, ToolCall, Verifier
from mcp_rl.toolserver.bundled import bundled_root, server_module
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.trajectory import Trajectory

NAME = "mcp_email_search"
FOLDER = bundled_root() / "servers/python/mcp_email_search"
mail_database = server_module(FOLDER, "mail_database")
SUBMIT = "return_final_answer"
UNKNOWN = "I don't know"
_SAYS_UNKNOWN = re.compile(
    r"\b(?:I|we) (?:don't|do not|cannot|can't|could not|couldn't|did not|didn't) (?:know|find|tell|say|answer)\b"
    r"|\b(?:unknown|not known|cannot be (?:found|known|determined|answered)|no answer)\b",
    re.IGNORECASE,
)
_SPELLED = (
    "Use search_inbox with keywords = '{keywords}'. Then use return_final_answer with answer = the {about} in that "
    "result and reference_message_ids = the message_id in that result.",
    "Call search_inbox with keywords '{keywords}', then call return_final_answer with answer set to the {about} in "
    "that result and reference_message_ids set to the message_id in that result.",
)
_SEEN = 0.04
"""Reward for each of two steps towards a right answer: its mail was found, and it was named."""
_LONG = 8
"""Words. A longer expected answer is compared by its words, since nobody repeats it literally."""


# Scenarios


def email_questions(sessions: object, *, server: ToolServer, params: ServerParams, recipe: Recipe) -> list[McpScenario]:
    """Return scenarios from the database's questions: of the recipe's levels, and some without an answer.

    A level that no question has is left out; the others keep their proportions.
    """
    rows = _rows()
    asked = [row for row in rows if row["extra"].get("kind") != "none"]
    plain = [row for row in asked if row["extra"].get("worded") == "mail" and row["extra"]["hops"] == 1]
    pools: dict[str, list[dict[str, Any]]] = {
        "spelled": plain,
        "told": [row for row in asked if row["extra"].get("hops", 1) == 1],
        "looked-up": [row for row in asked if row["extra"].get("hops", 1) > 1],
    }
    shares = {level: share for level, share in level_shares(recipe.levels).items() if pools.get(level)}
    if not shares:  # the user's own questions spell nothing out
        shares = {"told": 1.0}
    unsolvable = [row for row in rows if row["extra"].get("kind") == "none"][: recipe.count - recipe.solvable]
    wanted = recipe.count - len(unsolvable)
    chosen: dict[str, tuple[dict[str, Any], Level]] = {row["id"]: (row, "told") for row in unsolvable}
    for level in ("looked-up", "spelled", "told"):  # a question has one level only
        share = shares.get(level, 0.0) / sum(shares.values())
        free = [row for row in pools[level] if row["id"] not in chosen]
        chosen |= {row["id"]: (row, level) for row in free[: round(wanted * share)]}
    return [_scenario(*chosen[row["id"]], server.name, params) for row in rows if row["id"] in chosen]


def _rows() -> list[dict[str, Any]]:
    """Return the database's questions. Raises ScenarioError if there are none."""
    path = mail_database.default_path()
    if not path.exists() and not mail_database.partial_path(path).exists():
        print(f"There is no mail database {path} yet: building one of a made-up company.", file=sys.stderr)
        build = [sys.executable, str(FOLDER / "build_db.py"), "--database", str(path)]
        if subprocess.run(build, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode:
            raise ScenarioError(f"The mail database {path} could not be built.")
    try:
        with closing(mail_database.MailDatabase(path)) as database:
            rows = list(database.questions())
    except mail_database.DatabaseError as error:
        raise ScenarioError(str(error)) from error
    if not rows:
        raise ScenarioError(
            f"The mail database {path} holds no questions: add some with build-db --questions FILE, give a file of "
            "scenarios (--scenarios), or make tasks from the mail (--source explore)."
        )
    return [{**row, **{key: json.loads(row[key]) for key in ("message_ids", "extra")}} for row in rows]


def _scenario(row: dict[str, Any], level: Level, server: str, params: ServerParams) -> McpScenario:
    extra, request = row["extra"], row["question"]
    if level == "spelled":
        wording = _SPELLED[int(re.sub(r"\D", "", row["id"]) or 0) % len(_SPELLED)]
        request = wording.format(keywords=extra["keywords"][0], about=extra["about"])
    else:
        request += f"\n\nThis is the inbox of {row['inbox_address']}, and today is {row['query_date']}."
    searches = [ToolCall(tool="search_inbox", arguments={"keywords": words}) for words in extra.get("keywords", ())]
    answer = UNKNOWN if row["answer"] is None else str(row["answer"])
    handed_in: dict[str, Any] = {"answer": answer, "reference_message_ids": row["message_ids"]}
    readings = [ToolCall(tool="read_email", arguments={"message_id": one}) for one in row["message_ids"]]
    return McpScenario(
        id=f"{NAME}-{row['id']}",
        task_description=request,
        server=server,
        server_params=params,
        split=row["split"],
        level=level,
        initial_state={"inbox_address": row["inbox_address"], "query_date": row["query_date"]},
        reference=(*(searches or readings), ToolCall(tool=SUBMIT, arguments=handed_in)),
        reference_answer=answer,
        verifier=Verifier(
            kind="email_answer",
            expected={"answer": row["answer"], "message_ids": row["message_ids"]},
            options={"submit": SUBMIT, "compare": extra.get("kind") or _kind(answer)},
        ),
        tags=(
            f"{extra.get('hops', 1)}-hop",
            *(["other-words"] if extra.get("worded") == "other" else []),
            *(["unsolvable"] if row["answer"] is None else []),
        ),
    )


def _kind(answer: str) -> str:
    """Return the built-in verifier that fits an answer of the user's own, or "words"."""
    if re.fullmatch(r"-?\d[\d,]*(?:\.\d+)?", answer):
        return "number"
    if re.fullmatch(r"\d{4}-\d\d-\d\d", answer):
        return "time"
    return "text" if len(answer.split()) <= _LONG else "words"


# Reward


def email_answer(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Score an answer: 1 if it is right and its mail is named, 0.7 without the mail, 0.1 for "I don't know", else 0.

    An answer that was said and not handed in counts half. Below a right answer, up to 0.08 more is for having found
    and named the right mail, so that no wrong answer reaches "I don't know". Where no mail holds the answer, only "I
    don't know" after a search is right.
    """
    assert scenario.verifier is not None
    expected: Any = scenario.verifier.expected
    answer = submitted(trajectory, scenario)
    handed_in = answer is not None
    said = answer if answer is not None else trajectory.final_answer
    ids = {mail_database.bare_id(one) for one in expected["message_ids"]}
    named = _named(trajectory)
    found = any(f"message_id: {one}" in call.result for call in successful_calls(trajectory) for one in ids)
    share = 1.0 if handed_in else 0.5
    steps = _SEEN * found + _SEEN * bool(named & ids)
    metrics = {"found_mail": float(found), "says_unknown": 0.0}
    if said is None or not said.strip():
        return Verdict(steps * share, nothing_submitted(trajectory, scenario).explanation, metrics)
    unknown = bool(_SAYS_UNKNOWN.search(said.replace("\u2019", "'")))
    metrics["says_unknown"] = float(unknown)
    if expected["answer"] is None:
        searched = any(call.tool == "search_inbox" for call in successful_calls(trajectory))
        if unknown and searched:
            return Verdict(share, "No mail holds the answer, and the answer says so.", metrics)
        return Verdict(0.0, "No mail holds the answer, and it was not searched for and said so.", metrics)
    if unknown:
        return Verdict((0.1 + steps) * share, "The answer is that it is not known, though a mail holds it.", metrics)
    compared = _compared(said, trajectory, scenario)
    if compared.score < 1:
        return Verdict(steps * share, compared.explanation, metrics)
    sourced = bool(named & ids) and len(named - ids) <= 1
    how = "and names its mail" if sourced else "and does not name its mail" if not named & ids else "among other mails"
    if not handed_in:
        return Verdict(0.5, f"The answer is right, but was not handed in with {SUBMIT}.", metrics)
    return Verdict(1.0 if sourced else 0.7, f"The answer is right, {how}.", metrics)


def _named(trajectory: Trajectory) -> set[str]:
    """Return the ids of the mails that were handed in as the sources."""
    for call in reversed(successful_calls(trajectory)):
        if call.tool == SUBMIT and call.arguments:
            listed = call.arguments.get("reference_message_ids") or []
            return {mail_database.bare_id(str(one)) for one in listed}
    return set()


def _compared(said: str, trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Compare an answer with the expected one, as the built-in verifier of its kind does."""
    assert scenario.verifier is not None
    expected: Any = scenario.verifier.expected
    kind = str(scenario.verifier.options.get("compare", "text"))
    value: Any = expected["answer"]
    if kind == "words":
        return Verdict(float(_says_the_same(said, value)), "The words of the answer are compared.")
    if kind == "number":
        value = float(value.replace(",", ""))
        value = int(value) if value.is_integer() else value
    plain = scenario.model_copy(update={"verifier": Verifier(kind=kind, expected=value)})
    verdict = BUILT_IN[kind](trajectory.model_copy(update={"submission": said}), plain)
    assert isinstance(verdict, Verdict)
    return verdict


def _says_the_same(said: str, expected: str) -> bool:
    """Return whether an answer has seven in ten of the expected one's longer words and numbers, and little else."""
    given, wanted = normalised(said).split(), normalised(expected).split()
    telling = {word for word in wanted if len(word) > 3 or word[0].isdigit()} or set(wanted)
    return len(telling & set(given)) >= 0.7 * len(telling) and len(given) <= 3 * len(wanted) + 25


# Plugin


@hookimpl
def register_servers(register: Callable[[ToolServer], None]) -> None:
    script, database = "{bundled}/servers/python/mcp_email_search/search_server.py", str(mail_database.default_path())
    register(
        ToolServer(
            NAME,
            "An inbox: search and read mail, and hand in an answer with its sources.",
            {"stdio": StdioServer(command="{python}", args=(script, "--database", database))},
            isolation="reset",
            reset_tool="begin_episode",
            sandbox="off",  # it opens the database read-only
            source="email_search",
            verifiers={"email_answer": email_answer},
        )
    )


@hookimpl
def register_scenario_sources(register: Callable[[str, Any], None]) -> None:
    register("email_search", email_questions)
