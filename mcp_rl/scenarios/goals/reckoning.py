"""A request whose answer tools compute from its values, and the proof that makes a task of it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.scenario import GoalProof, ToolCall, Verifier
from mcp_rl.scenarios.goals.right_answer import answer_as_shown, answer_text, say_otherwise, verifier_of
from mcp_rl.scenarios.goals.task import REFUSAL, GoalTask, accepted, longest, results_hash
from mcp_rl.scenarios.goals.values import shown

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from mcp_rl.scenario import Level
    from mcp_rl.scenarios.goals.program import ProgramAnswer
    from mcp_rl.scenarios.goals.twice import ReadingCall, Twice

_CONSTANTS = ("0", "1", "yes", "no", "I do not know.", "")


@dataclass(frozen=True)
class Reckoning:
    """A request, with the calls that solve it."""

    text: str
    outcome: str
    """The kind of question, such as a tool and the part of its result; guesses are counted for each kind."""
    level: Level
    calls: tuple[ReadingCall, ...]
    shows: tuple[float | str, ...]
    """For each call the number, the time of day (15:35) or the whole text that its result must have."""
    answer: ProgramAnswer
    others: tuple[str, ...] = ()
    """For a comparison: the names with the smaller amount."""


def stands_in(one: Reckoning) -> bool:
    """Return whether a request states its own answer."""
    value = one.answer.value[-1] if isinstance(one.answer.value, list) else one.answer.value
    return re.search(rf"(?<![\w.:]){re.escape(shown(value))}(?![\w:]|\.\d)", one.text, re.IGNORECASE) is not None


def tasks_of(found: Sequence[Reckoning], twice: Twice, random: random.Random) -> list[GoalTask]:
    """Return the tasks of these requests whose verifiers judge right and wrong endings as they should.

    Their calls must have been made.
    """
    answers: dict[str, Counter[str]] = {}
    for one in found:
        answers.setdefault(one.outcome, Counter())[answer_text(one.answer)] += 1
    tasks = [_task(one, _guess(answers[one.outcome], answer_text(one.answer)), twice, random) for one in found]
    return [task for task in tasks if task is not None]


def _task(one: Reckoning, guess: float, twice: Twice, random: random.Random) -> GoalTask | None:
    calls = tuple(ToolCall(tool=tool, arguments=dict(arguments)) for tool, arguments in one.calls)
    said = answer_text(one.answer)
    verifier = verifier_of(one.others, one.answer)
    if one.others:
        verifier = Verifier(kind="parts", expected=one.answer.value, options={"others": list(one.others)})
    texts = [text for call in one.calls if (text := twice[call]) is not None]
    wrong = [("", calls), (REFUSAL, calls), (said, ()), *((word, calls) for word in _CONSTANTS)]
    right = [said, f"The answer is {said}.", *say_otherwise(one.answer, random)]
    if not all(accepted(verifier, words, calls) for words in right):
        return None
    if any(accepted(verifier, *each) for each in wrong):
        return None
    values = sorted(str(value) for _, arguments in one.calls[:1] for value in arguments.values())
    proof = GoalProof(
        program=f"{one.outcome} {[*one.calls]!r}", executed=2, results=results_hash(texts),
        longest_result=longest(texts), refused=len(wrong), guess=round(guess, 4), apart=(f"values {values}",),
    )  # fmt: skip
    shown_answer = answer_as_shown(one.answer, texts)
    return GoalTask(one.text, one.level, calls, shown_answer, verifier, proof, (one.level, "reckoned"))


def _guess(answers: Counter[str], right: str) -> float:
    most = max(answers.values())
    best = [answer for answer, count in answers.items() if count == most]
    return 1 / len(best) if most > 1 and right in best else 0.0
