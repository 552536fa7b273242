"""A second solver: other calls, found by random search over the world model, that reach the same answer or end state.

It uses other tools, another order and superfluous reading calls, sets a wrong value before the right one, makes its
calls on the live server, and answers from their results alone. Its solutions must be judged right. Near misses (a
dropped condition, another thing, one change too many) must be judged wrong.
"""

from __future__ import annotations

import json
import posixpath
import random
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint

from mcp_rl.explore.entities.statements import filled, values_in
from mcp_rl.scenario import ToolCall
from mcp_rl.scenarios.goals.changes.calls import with_argument
from mcp_rl.scenarios.goals.lookups import Lookups
from mcp_rl.scenarios.goals.near import near_answers
from mcp_rl.scenarios.goals.program import Program, Unanswerable, View, evaluate
from mcp_rl.scenarios.goals.question import given_values
from mcp_rl.scenarios.goals.questions import Questions
from mcp_rl.scenarios.goals.reading import read_program
from mcp_rl.scenarios.goals.right_answer import say_otherwise
from mcp_rl.scenarios.goals.task import accepted, records_of, refutes
from mcp_rl.scenarios.stage import MOST_CALLS, Played, ProposedCall, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import Effect, Entity, WorldModel
    from mcp_rl.scenario import McpScenario
    from mcp_rl.scenarios.goals.twice import Twice

_SUPERFLUOUS = 3
"""Maximum number of superfluous reading calls in a solution."""
_DONE = "It is done."


@dataclass
class SecondOpinion:
    """Verdicts on alternative solutions and on wrong ones."""

    right: dict[str, int] = field(default_factory=dict)
    """Number of alternative solutions judged right, by scenario id."""
    wrong: dict[str, int] = field(default_factory=dict)
    """Number of wrong solutions judged wrong, by scenario id."""
    misjudged: list[tuple[str, str]] = field(default_factory=list)
    """Scenarios with a wrong verdict, each with a sentence."""
    refused_solutions: int = 0
    """Number of solutions that were judged wrong."""

    def summary(self) -> dict[str, int]:
        """Return the counts as JSON."""
        right, wrong = sum(self.right.values()), sum(self.wrong.values())
        return {
            "tasks": len(self.right),
            "solutions": right + self.refused_solutions,
            "judged_right": right,
            "wrong_solutions": wrong + len(self.misjudged) - self.refused_solutions,
            "judged_wrong": wrong,
        }

    @property
    def sentence(self) -> str:
        """The counts in a sentence."""
        said = self.summary()
        return (
            f"A second solver found {said['solutions']} other solutions of {said['tasks']} goal tasks: "
            f"{said['judged_right']} are judged right, and of {said['wrong_solutions']} wrong ones "
            f"{said['judged_wrong']} are judged wrong."
        )

    def of_solution(self, scenario: McpScenario, way: str, *, accepted: bool) -> None:
        """Record the verdict on a solution."""
        if accepted:
            self.right[scenario.id] = self.right.get(scenario.id, 0) + 1
        else:
            self.refused_solutions += 1
            self.misjudged.append((scenario.id, f"Another solution is judged wrong: {way:.300}"))

    def of_near_miss(self, scenario: McpScenario, way: str, *, accepted: bool) -> None:
        """Record the verdict on a wrong solution."""
        if accepted:
            self.misjudged.append((scenario.id, f"A wrong solution is judged right: {way:.300}"))
        else:
            self.wrong[scenario.id] = self.wrong.get(scenario.id, 0) + 1


class SecondSolver:
    """Solves goal tasks of one world again."""

    def __init__(self, world: WorldModel, tools: Sequence[str], stage: Stage, twice: Twice, seed: int) -> None:
        self._world, self._stage, self._twice = world, stage, twice
        self._random = random.Random(f"{seed}:second")
        self._questions = Questions(world, tools, seed)
        self._lookups = Lookups(world)
        self._names = stage.schemas.to_openai
        self._changing = {effect.tool for effect in world.effects}
        self._ways = self._near = 0

    async def judge(self, scenarios: Sequence[McpScenario], *, ways: int = 3, near: int = 5) -> SecondOpinion:
        """Solve these scenarios in other ways, and nearly; return their verifiers' verdicts.

        `ways` and `near` limit the solutions and the wrong ones that are tried for each task.
        """
        self._ways, self._near = ways, near
        found = SecondOpinion()
        goals = [one for one in scenarios if one.proof is not None and one.verifier is not None]
        await self._twice.make([(seen.tool, seen.arguments) for seen in self._world.observations] if goals else [])
        changes = [one for one in goals if one.verifier is not None and one.verifier.kind == "state"]
        for one in goals:
            if one not in changes:
                await checkpoint()
                self._answer(one, found)
        await self._bring_about(changes, found)
        return found

    # Answers

    def _answer(self, scenario: McpScenario, found: SecondOpinion) -> None:
        assert scenario.proof is not None and scenario.verifier is not None
        program = read_program(scenario.proof.program)
        if program is None:
            return
        try:
            evaluated = self._questions.spoken(evaluate(self._world, program))
        except Unanswerable:
            return
        given = given_values(program, self._questions.english)
        seen: set[tuple[int, ...]] = set()
        for _ in range(self._ways):
            way = self._lookups.another(evaluated, given, self._random)
            if way is None or tuple(way) in seen:
                continue
            seen.add(tuple(way))
            made = self._with_superfluous(way)
            answer = self._answer_from(made, program)
            if answer is not None:
                calls = self._calls([(o.tool, o.arguments) for o in (self._world.observations[i] for i in made)])
                words = self._random.choice(list(say_otherwise(answer.answer, self._random)))
                found.of_solution(
                    scenario,
                    f"{[call.tool for call in calls]}, {words!r}",
                    accepted=accepted(scenario.verifier, words, calls),
                )
        for words in near_answers(self._world, self._questions, program, evaluated, self._random)[: self._near]:
            found.of_near_miss(
                scenario, repr(words), accepted=accepted(scenario.verifier, words, list(scenario.reference))
            )

    def _with_superfluous(self, way: Sequence[int]) -> list[int]:
        made = list(way)
        more = min(len(self._world.observations), self._random.randint(0, _SUPERFLUOUS))
        for index in self._random.sample(range(len(self._world.observations)), more):
            made.insert(self._random.randint(0, len(made)), index)
        return made

    def _answer_from(self, made: Sequence[int], program: Program) -> Any:
        """Answer the program from these observations alone, made again on the server; None if the server now says
        something else."""
        for index in made:
            seen = self._world.observations[index]
            if not self._twice.repeats(seen):
                return None
        view = View.of_observations(self._world, set(made))
        try:
            return self._questions.spoken(evaluate(view.world, program, view))
        except Unanswerable:
            return None

    # End states

    async def _bring_about(self, scenarios: Sequence[McpScenario], found: SecondOpinion) -> None:
        tries: list[tuple[McpScenario, Sequence[ToolCall], bool]] = []
        for scenario in scenarios:
            right = [calls for calls in self._other_ways(scenario) if len(calls) <= MOST_CALLS]
            wrong = [calls for calls in self._near_misses(scenario) if len(calls) <= MOST_CALLS][: self._near]
            if [] in wrong and scenario.verifier is not None and self._twice.refute(scenario.verifier):
                wrong.remove([])
                found.of_near_miss(scenario, "no call", accepted=False)
            tries += [(scenario, calls, True) for calls in right[: self._ways]]
            tries += [(scenario, calls, False) for calls in wrong]
        played = await self._stage.play_all(
            [
                ([self._proposed(call) for call in calls], self._stage.reads(scenario), None)
                for scenario, calls, _ in tries
            ],
            [
                None if is_right or scenario.verifier is None else partial(refutes, scenario.verifier)
                for scenario, _, is_right in tries
            ],
        )
        ends = [
            (scenario.id, one.looks)
            for (scenario, _, is_right), one in zip(tries, played, strict=True)
            if is_right and isinstance(one, Played)
        ]
        for (scenario, calls, is_right), one in zip(tries, played, strict=True):
            await checkpoint()
            if not isinstance(one, Played) or scenario.verifier is None:
                continue  # the server refuses these calls
            if calls and not is_right and (scenario.id, one.looks) in ends:
                continue  # the server ignored what would have been wrong, such as a second thing of the same name
            judged = not one.refuted and accepted(scenario.verifier, _DONE, one.calls, records_of(one.looks))
            said = "; ".join(f"{call.tool} {json.dumps(call.arguments, ensure_ascii=False)}" for call in calls)
            (found.of_solution if is_right else found.of_near_miss)(scenario, said or "no call", accepted=judged)

    def _effect(self, scenario: McpScenario, call: ToolCall) -> Effect | None:
        does = scenario.proof.program.split(" ", 1)[0] if scenario.proof is not None else ""
        fitting = [one for one in self._world.effects if one.tool == call.tool and one.does == does]
        fitting = [one for one in fitting if not one.statement or _stated(one, call) is not None]
        return next((one for one in fitting if self._named(one, call) is not None or does == "creates"), None)

    def _named(self, effect: Effect, call: ToolCall) -> Entity | None:
        """Return the thing that a call names."""
        if effect.statement:
            key = (_stated(effect, call) or {}).get(self._world.kinds[effect.kind].key)
            return next((one for one in self._world.of_kind(effect.kind) if one.key == key), None)
        values = list(map(str, _leaves(call.arguments, effect.keyed_by)))
        fields = self._lookups.fields_of(effect.tool, str(effect.keyed_by), effect.kind)
        fields = [*fields, self._world.kinds[effect.kind].key]
        for one in self._world.of_kind(effect.kind):
            if any(name in one.facts and str(one.facts[name].value) in values for name in fields):
                return one
        return None

    def _changes_of(self, scenario: McpScenario) -> list[ToolCall]:
        return [call for call in scenario.reference if call.tool in self._changing]

    def _other_ways(self, scenario: McpScenario) -> Iterator[list[ToolCall]]:
        """Yield alternative calls that reach the same end state."""
        calls = self._changes_of(scenario)
        yield self._with_looks(self._random.sample(calls, len(calls)))
        renamed = [self._named_otherwise(scenario, call) for call in calls]
        if renamed != calls:
            yield self._with_looks(renamed)
        by_others = [self._by_another_tool(scenario, call) for call in calls]
        if by_others != calls:
            yield self._with_looks(by_others)
        effect = self._effect(scenario, calls[0]) if calls else None
        if effect is not None and effect.does == "sets" and effect.field != self._world.kinds[effect.kind].key:
            detour = next(self._altered(effect, calls[0]), None)
            if detour is not None:
                yield self._with_looks([detour, *calls])

    def _with_looks(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """Surround calls with superfluous reading calls, before them and once after them."""
        readers = [seen for seen in self._world.observations if seen.tool not in self._changing]
        most = min(len(readers), self._random.randint(1, _SUPERFLUOUS), max(0, MOST_CALLS - len(calls)))
        more = self._random.sample(readers, most)
        looks = [ToolCall(tool=seen.tool, arguments=dict(seen.arguments)) for seen in more]
        return [*looks, *calls]

    def _named_otherwise(self, scenario: McpScenario, call: ToolCall) -> ToolCall:
        effect = self._effect(scenario, call)
        entity = self._named(effect, call) if effect is not None and effect.does != "creates" else None
        if effect is None or entity is None or effect.keyed_by is None:
            return call
        if effect.statement:
            return self._row_by_name(effect, entity, call)
        fields = self._lookups.fields_of(effect.tool, effect.keyed_by, effect.kind)
        known = [entity.facts[name].value for name in fields if name in entity.facts]
        if not known:
            return call
        arguments = with_argument(call.arguments, effect.keyed_by, self._random.choice(known))
        return ToolCall(tool=call.tool, arguments=arguments)

    def _row_by_name(self, effect: Effect, entity: Entity, call: ToolCall) -> ToolCall:
        """Return the call with a statement that names its row by its name instead of its key."""
        key, name = self._world.kinds[effect.kind].key, self._questions.english.name_field(effect.kind)
        statement = effect.statement.replace(f"WHERE {key} = {{{key}}}", f"WHERE {name} = {{wanted}}")
        values = {**(_stated(effect, call) or {}), "wanted": entity.facts[name].value if name in entity.facts else None}
        text = filled(statement, values)
        return call if text is None else ToolCall(tool=call.tool, arguments=dict.fromkeys(call.arguments, text))

    def _by_another_tool(self, scenario: McpScenario, call: ToolCall) -> ToolCall:
        effect = self._effect(scenario, call)
        others = [
            one
            for one in self._world.effects
            if effect is not None
            and (one.does, one.kind, one.field) == (effect.does, effect.kind, effect.field)
            and one.tool != effect.tool
            and not (one.statement or effect.statement)
            and set(one.valued_by.values()) == set(effect.valued_by.values())
            and (one.keyed_by is None) == (effect.keyed_by is None)
        ]
        if effect is None or not others:
            return call
        other = self._random.choice(others)
        arguments: Any = dict(other.example)
        by_field = {name: parameter for parameter, name in effect.valued_by.items()}
        for parameter, name in other.valued_by.items():
            values = list(_leaves(call.arguments, by_field[name]))
            arguments = with_argument(arguments, parameter, values[0] if values else None)
        entity = self._named(effect, call) if effect.does != "creates" else None
        if entity is not None and other.keyed_by is not None:
            arguments = with_argument(arguments, other.keyed_by, entity.key)
        return ToolCall(tool=other.tool, arguments=arguments)

    def _near_misses(self, scenario: McpScenario) -> Iterator[list[ToolCall]]:
        """Yield calls that miss the end state narrowly."""
        calls = self._changes_of(scenario)
        if not calls:
            return
        yield []
        if len(calls) > 1:
            gone = self._random.randrange(len(calls))
            yield [call for at, call in enumerate(calls) if at != gone]
        at = self._random.randrange(len(calls))
        effect = self._effect(scenario, calls[at])
        if effect is None:
            return
        others = [] if effect.does == "creates" else self._of_others(scenario, effect, calls[at])
        if others:
            yield [*calls[:at], *calls[at + 1 :], others[0]]
            yield [*calls, others[-1]]
        for wrong in self._altered(effect, calls[at]):
            yield [*calls[:at], wrong, *calls[at + 1 :]]
            if effect.does == "creates":
                yield [*calls, wrong]

    def _of_others(self, scenario: McpScenario, effect: Effect, call: ToolCall) -> list[ToolCall]:
        """Return the call for two other things, which the solution does not name."""
        named = [self._named(effect, one) for one in self._changes_of(scenario)]
        rest = [one for one in self._world.of_kind(effect.kind) if one not in named]
        found = []
        for one in self._random.sample(rest, min(2, len(rest))):
            if effect.statement:
                values = {**(_stated(effect, call) or {}), self._world.kinds[effect.kind].key: one.key}
                held = {name: fact.value for name, fact in one.facts.items()}
                if effect.does == "removes" or any(held.get(n) != values[n] for n in effect.valued_by.values()):
                    found.append(_restated(effect, call, values))
                continue
            arguments = with_argument(call.arguments, str(effect.keyed_by), one.key)
            if effect.field == self._world.kinds[effect.kind].key:
                for parameter, name in effect.valued_by.items():
                    target = next(_leaves(call.arguments, parameter), "")
                    if name == effect.field and "/" in str(target):
                        key = posixpath.join(posixpath.dirname(str(target)), posixpath.basename(str(one.key)))
                        arguments = with_argument(arguments, parameter, key)
                        if key == str(one.key):
                            arguments = None
            if arguments is not None and not self._is_so_already(effect, one, arguments):
                found.append(ToolCall(tool=call.tool, arguments=arguments))
        return found

    def _is_so_already(self, effect: Effect, entity: Entity, arguments: dict[str, Any]) -> bool:
        """Return whether a call would leave a thing unchanged."""
        if effect.value is not None:
            fact = entity.facts.get(str(effect.field))
            return fact is not None and fact.value == effect.value
        for parameter, name in effect.valued_by.items():
            fact, values = entity.facts.get(name), list(_leaves(arguments, parameter))
            held = [] if fact is None else fact.value if isinstance(fact.value, list) else [fact.value]
            if (effect.does == "takes") != all(value in held for value in values):
                return True
        return False

    def _altered(self, effect: Effect, call: ToolCall) -> Iterator[ToolCall]:
        """Yield the call with a slightly wrong value."""
        stated = _stated(effect, call) if effect.statement else None
        for parameter, name in effect.valued_by.items():
            value = stated.get(name) if stated else next(_leaves(call.arguments, parameter), None)
            other: JsonValue = None
            if isinstance(value, str) and value:
                stem, ending = posixpath.splitext(value) if " " not in value else (value, "")
                other = f"{stem}2{ending}"
            elif isinstance(value, int | float) and not isinstance(value, bool):
                other = value + 1
            if other is not None and stated:
                yield _restated(effect, call, {**stated, name: other})
            elif other is not None and effect.does != "takes":
                yield ToolCall(tool=call.tool, arguments=with_argument(call.arguments, parameter, other))

    def _calls(self, calls: Sequence[tuple[str, Any]]) -> list[ToolCall]:
        return [ToolCall(tool=tool, arguments=dict(arguments)) for tool, arguments in calls]

    def _proposed(self, call: ToolCall) -> ProposedCall:
        return ProposedCall(tool=self._names.get(call.tool, call.tool), arguments=json.dumps(dict(call.arguments)))


def _stated(effect: Effect, call: ToolCall) -> dict[str, Any] | None:
    """Return the values in a call's statement of SQL; None where it is another statement."""
    return values_in(effect.statement, str(next(iter(call.arguments.values()), "")))


def _restated(effect: Effect, call: ToolCall, values: dict[str, Any]) -> ToolCall:
    statement = filled(effect.statement, values)
    return ToolCall(tool=call.tool, arguments=dict.fromkeys(call.arguments, statement))


def _leaves(arguments: Any, parameter: str | None) -> Iterator[Any]:
    """Yield the values of a parameter such as `title`, or `entities[].name` in a list of objects."""
    if parameter is None or not isinstance(arguments, dict):
        return
    first, _, rest = parameter.partition(".")
    value = arguments.get(first.removesuffix("[]"))
    for one in value if isinstance(value, list) else [value]:
        if rest:
            yield from _leaves(one, rest)
        elif one is not None:
            yield one


def with_opinion(scenarios: Sequence[McpScenario], opinion: SecondOpinion) -> list[McpScenario]:
    """Return the scenarios without a wrong verdict, with the counts of solutions and wrong ones in their proofs."""
    bad = {one for one, _ in opinion.misjudged}
    return [
        one
        if one.proof is None
        else one.model_copy(
            update={
                "proof": one.proof.model_copy(
                    update={
                        "second": opinion.right.get(one.id, 0),
                        "refused": one.proof.refused + opinion.wrong.get(one.id, 0),
                    }
                )
            }
        )
        for one in scenarios
        if one.id not in bad
    ]
