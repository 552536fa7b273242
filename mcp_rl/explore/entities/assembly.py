"""A world model put together: from the things that two episodes showed alike, with the calls that show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.abbreviations import words_used
from mcp_rl.explore.entities.agreeing import AgreeingTools
from mcp_rl.explore.entities.completeness import Completeness
from mcp_rl.explore.entities.kinds import (
    described_fields,
    descriptions_of,
    references_between,
    single_kinds,
    values_of,
    with_relations,
)
from mcp_rl.explore.entities.nouns import plural
from mcp_rl.explore.entities.singles import singles_of
from mcp_rl.explore.entities.world_model import Entity, EntityKind, Fact, Observation, WorldModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mcp_rl.explore.entities.caller import Answered
    from mcp_rl.explore.entities.survey import Survey
    from mcp_rl.explore.entities.things import Draft

_MOST_OBSERVED = 1_500_000
"""Most characters of all observations."""


class Assembly:
    """Puts a model together."""

    def __init__(self, name: str, survey: Survey, first: list[Answered], again: list[Answered | None]) -> None:
        """`first` are the answers of the survey, `again` those of the same calls in another episode."""
        pairs = [(one, two) for one, two in zip(first, again, strict=True) if two is not None and two.tells]
        self._name, self._survey = name, survey
        self.answers = [one for one, _ in pairs]
        self._again = [two for _, two in pairs]
        self._merge()
        unsteady = {
            (noun, draft.key)
            for noun, draft in self.things.drafts.items()
            if not self._agreeing.tools(draft, draft.key)
        }
        if unsteady:  # other fields may be keys that last
            survey.passing |= unsteady
            self._merge()

    def _merge(self) -> None:
        self.things = self._survey.merged(self.answers)
        self._twice = self._survey.merged(self._again, learn=False)
        self._agreeing = AgreeingTools(self.things, self._twice, self.answers)

    def model(self) -> WorldModel:
        """Return the model."""
        drafts = {noun: draft for noun, draft in self.things.drafts.items() if draft.things}
        entities = self._on_known_things([one for draft in drafts.values() for one in self._entities(draft)])
        names = {entity.kind for entity in entities}
        kinds = {noun: draft for noun, draft in drafts.items() if noun in names}
        completeness = Completeness(self.things, self.answers, self._survey)
        complete = completeness.of_listed(entities)
        in_parts = completeness.of_rows(entities, complete)
        singles = singles_of(self.things, self._twice, self.answers, self._again)
        complete |= {one.kind: sorted({at for fact in one.facts.values() for at in fact.shown_by}) for one in singles}
        told, observations = self._observed([*entities, *singles], complete, in_parts)
        entities = [one for one in told if one.kind in kinds]
        alone = [one for one in told if one.kind not in kinds]
        tools = self._survey.reader.tools.values()
        abouts, known = descriptions_of(tools), words_used(tools, (answer.text for answer in self.answers))
        described_kinds = {
            noun: EntityKind(
                name=noun,
                plural=plural(noun),
                key=draft.key,
                fields=dict(described_fields(draft, values_of(entities, noun), abouts, known)),
                complete=noun in complete or noun in in_parts,
                within=draft.within,
            )
            for noun, draft in kinds.items()
        }
        references = tuple(references_between(described_kinds, entities, set(self._survey.places)))
        return WorldModel(
            server=self._name,
            kinds=with_relations(described_kinds, references) | single_kinds(alone, abouts, known),
            entities=(*entities, *alone),
            observations=tuple(observations),
            slots=tuple(
                slot
                for slot in dict.fromkeys(self._survey.accepted)
                if slot.kind in described_kinds and slot.field in described_kinds[slot.kind].fields
            ),
            references=references,
        )

    def _entities(self, draft: Draft) -> Iterator[Entity]:
        fields = dict.fromkeys(name for told in draft.things.values() for name in told)
        kept = {
            name: tools
            for name in fields
            if (tools := self._agreeing.tools(draft, name)) and not _says_the_kind(draft, name)
        }
        listed = self._listed_files() if draft.noun == "file" else frozenset()
        for key, told in draft.things.items():
            if key in draft.ambiguous or (key in self._survey.places and key not in listed):
                continue  # where the server begins, no listing shows
            facts: dict[str, Fact] = {}
            for name, tools in kept.items():
                value = told[name].value(tools) if name in told else None
                if value is not None:
                    facts[name] = Fact(value=value[0], shown_by=tuple(sorted(value[1])))
            if draft.key in facts:
                yield Entity(kind=draft.noun, key=key, facts=facts)

    def _listed_files(self) -> frozenset[Any]:
        """Return the paths of files that listings show among others, though exploring began at some of them."""
        lists = (one.keys for one in self.things.listings if one.noun == "file" and len(one.keys) > 1)
        return frozenset().union(*lists)

    def _on_known_things(self, entities: Sequence[Entity]) -> list[Entity]:
        """Return the things without those rows of tables that stand on none of the others."""
        known = {(one.kind, one.key) for one in entities}
        within = {noun: draft.within for noun, draft in self.things.drafts.items() if draft.within}
        return [
            one
            for one in entities
            if one.kind not in within
            or ((home := within[one.kind]) in one.facts and (home, one.facts[home].value) in known)
        ]

    def _observed(
        self, entities: Sequence[Entity], complete: Mapping[str, list[int]], in_parts: Mapping[str, list[int]]
    ) -> tuple[list[Entity], list[Observation]]:
        """Return the things and the observations that show them, numbered anew, within the limit."""
        used = {call for entity in entities for fact in entity.facts.values() for call in fact.shown_by}
        used |= {call for calls in in_parts.values() for call in calls}
        lists: dict[int, list[str]] = {}
        for noun, calls in complete.items():
            for call in calls:
                lists.setdefault(call, []).append(noun)
        numbers: dict[tuple[int, str], int] = {}
        observations: list[Observation] = []
        room = _MOST_OBSERVED
        for call in sorted(used | set(lists)):
            answer = self.answers[call]
            room -= len(answer.text)
            if room < 0:
                break
            # One that lists several kinds stands there for each of them.
            for noun in lists.get(call, [""]):
                numbers[call, noun] = len(observations)
                observations.append(
                    Observation(tool=answer.tool, arguments=answer.arguments, text=answer.text, lists=noun or None)
                )
        first = {call: number for (call, _), number in reversed(numbers.items())}
        kept = []
        for entity in entities:
            facts = {}
            for name, fact in entity.facts.items():
                shown = tuple(numbers.get((call, entity.kind), first[call]) for call in fact.shown_by if call in first)
                if shown:
                    facts[name] = Fact(value=fact.value, shown_by=shown)
            if facts:
                kept.append(Entity(kind=entity.kind, key=entity.key, facts=facts))
        return kept, observations


def _says_the_kind(draft: Draft, name: str) -> bool:
    """Return whether a field is a flag that is the same for all of several things, such as isFile."""
    told = [fields[name].by_tool for fields in draft.things.values() if name in fields]
    values = {value for by_tool in told for by_value in by_tool.values() for value in by_value}
    return len(told) > 1 and len(values) == 1 and values <= {"true", "false"}
