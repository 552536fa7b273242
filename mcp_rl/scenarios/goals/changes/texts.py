"""Changes in texts: a word replaced, or a line added."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcp_rl.explore import plausible
from mcp_rl.scenarios.goals.program import CountOf
from mcp_rl.scenarios.goals.values import telling_words
from mcp_rl.scenarios.goals.words import quoted, sentence

if TYPE_CHECKING:
    from mcp_rl.explore.entities.world_model import Effect
    from mcp_rl.scenarios.goals.changes.calls import ChangeCalls, StateChange
    from mcp_rl.scenarios.goals.changes.draws import ChangeDraws

LONGEST_EDITED = 3000
"""Maximum characters of a text to be changed or copied."""


class TextEdits:
    """Requests for changes in texts."""

    def __init__(self, draws: ChangeDraws, calls: ChangeCalls) -> None:
        self._draws, self._calls = draws, calls
        self._world, self._random, self._english = draws.world, draws.random, draws.english

    def editing(self, effect: Effect) -> StateChange | None:
        """Ask for a partial change of a text: a word replaced, or a line added."""
        kind, name = effect.kind, str(effect.field)
        one = self._random.random() < 0.75
        if (found := self._draws.choose(kind, without=[] if one else [name], one=one)) is None:
            return None
        program, evaluated = found[0], self._draws.seen(found[1], kind, name)
        chosen = self._draws.entities(evaluated, kind)
        texts = {str(entity.key): str(entity.facts[name].value) for entity in chosen}
        if any(len(text) > LONGEST_EDITED for text in texts.values()):
            return None
        if one:
            its, it = f"of {self._draws.said(program)}", self._draws.said(program)
        else:
            assert isinstance(program, CountOf)
            it = f"every {self._english.things(program.things, one=True)}"
            its = f"of {it}"
        line = sentence(plausible.sentence(self._random)) + "."
        said = quoted(line)
        way = self._random.choice(["word", "first", "last"])
        if way == "word":
            common = [
                w for w in telling_words(next(iter(texts.values()))) if all(_stands_alone(w, t) for t in texts.values())
            ]
            if not common:
                return None
            old, new = self._random.choice(common), self._random.choice(plausible.WORDS)
            if any(new in text for text in texts.values()):
                return None
            edited = {key: re.sub(rf"\b{old}\b", new, text) for key, text in texts.items()}
            forms = [
                f"Wherever {it} says {quoted(old)}, it should say {quoted(new)} instead; all else in it stays.",
                f"In {it}, every {quoted(old)} should become {quoted(new)}; leave the rest as it is.",
            ]
        elif way == "first":
            edited = {key: f"{line}\n{text}" for key, text in texts.items()}
            forms = [
                f"A new first line should stand above the text {its}: {said}",
                f"{it} should begin with one more line, above all that it says now: {said}",
            ]
        else:
            edited = {key: f"{text.rstrip()}\n{line}" for key, text in texts.items()}
            forms = [
                f"A new last line should stand below the text {its}: {said}",
                f"{it} should end with one more line, below all that it says now: {said}",
            ]
        return self._calls.finish(
            effect, program, evaluated, lambda entity: {name: edited.get(str(entity.key), line)}, forms
        )


def _stands_alone(word: str, text: str) -> bool:
    """Return whether a text holds a word in this letter case only, and never inside another word."""
    return 0 < len(re.findall(rf"\b{word}\b", text)) == text.casefold().count(word)
