"""Thoughts in a model's turn: separated from its answer and from its tool calls.

A turn begins with a thought if the generation prompt or the turn's own text opens one. A thought that is never closed
extends to the end of the turn: nothing in it is an answer or a call. A later thought is left out too, unless it lies
inside a call, where it is part of an argument. If the template writes a closing marker, text before one is a thought
even without an opening.
"""

from __future__ import annotations

from dataclasses import dataclass

MARKERS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""Markers that open and close a thought; Harmony's thoughts are parsed with its channels."""


@dataclass(frozen=True)
class Thinking:
    """How a model marks its thoughts, according to its template."""

    opens: str = MARKERS[0][0]
    closes: str = MARKERS[0][1]
    opened: bool = False
    """The generation prompt opens a thought."""
    written: bool = False
    """The template writes the closing marker, so that a text before one is a thought."""
    closed: bool = False
    """The generation prompt closes the thought that it opens, as it does where thinking is switched off."""

    @property
    def thinks(self) -> bool:
        """Return whether turns may hold a thought: the template knows the marker, and the prompt does not close it."""
        return (self.opened or self.written) and not self.closed

    def split(self, text: str, calls: tuple[tuple[str, ...], str]) -> tuple[str, str]:
        """Return a turn's text without its thoughts, and the thoughts. `calls`: openings and the end of a call."""
        before, closed, after = text.partition(self.closes)
        if (
            self.opened
            or text.lstrip().startswith(self.opens)
            or (self.written and closed and self.opens not in before)
        ):
            thought = before.lstrip().removeprefix(self.opens).strip()
            if not closed:
                return "", thought
            rest, more = self._without(after, *calls)
            return rest, "\n".join(filter(None, (thought, more)))
        return self._without(text, *calls)

    def _without(self, text: str, call_opens: tuple[str, ...], call_closes: str) -> tuple[str, str]:
        """Leave out thoughts outside of calls."""
        if self.opens not in text:
            return text, ""
        said: list[str] = []
        thoughts: list[str] = []
        at = 0
        while (opened := text.find(self.opens, at)) >= 0:
            calls = [found for mark in call_opens if len(mark) > 1 and (found := text.find(mark, at)) >= 0]
            if calls and min(calls) < opened:
                end = text.find(call_closes, min(calls)) + len(call_closes) if call_closes else 0
                if end <= min(calls):
                    break  # a call that extends to the end
                said.append(text[at:end])
                at = end
                continue
            said.append(text[at:opened])
            thought, closed, _ = text[opened + len(self.opens) :].partition(self.closes)
            thoughts.append(thought.strip())
            at = opened + len(self.opens) + len(thought) + len(self.closes) if closed else len(text)
        return "".join([*said, text[at:]]), "\n".join(filter(None, thoughts))


def thinking_of(template: str, prompt: str) -> Thinking:
    """Return how a model marks its thoughts, from its template's source and the end of a rendered generation prompt."""
    for opens, closes in MARKERS:
        opened = prompt.rstrip().endswith(opens)
        written = closes in template
        if opened or written:
            return Thinking(opens, closes, opened, written, prompt.rstrip().endswith(closes))
    return Thinking()
