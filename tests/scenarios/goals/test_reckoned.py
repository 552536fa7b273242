"""Tasks for tools that reckon: word problems and the clocks of cities, on a live server."""

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import anyio

from mcp_rl.scenario import StdioServer, ToolCall
from mcp_rl.scenarios.goals.clocks import CITIES
from mcp_rl.scenarios.goals.reckoned import Reckoned
from mcp_rl.scenarios.goals.stories import STORIES
from mcp_rl.scenarios.goals.task import GoalTask, accepted
from mcp_rl.scenarios.goals.twice import Twice
from mcp_rl.toolserver.pool import Sessions

SERVER = StdioServer(command=sys.executable, args=[str(Path(__file__).with_name("reckoning_server.py"))])


def reckoned_tasks(*, knowledge: bool = True) -> list[GoalTask]:
    async def make() -> list[GoalTask]:
        async with Sessions() as sessions:
            session = await sessions.get(SERVER)
            names = [tool.name for tool in session.offered]
            reckoned = Reckoned(session.offered, names, Twice(sessions, SERVER), seed=1, knowledge=knowledge)
            return await reckoned.tasks({"told": 30, "worked-out": 20})

    return anyio.run(make)


def test_reckoning_tools_are_known_by_trying_and_asked_in_words() -> None:
    tasks = reckoned_tasks()
    assert {level: sum(task.level == level for task in tasks) for level in ("told", "worked-out")} == {
        "told": 30,
        "worked-out": 20,
    }
    assert {call.tool for task in tasks for call in task.calls} == {"work_out", "shift_clock"}  # no sum is made by it
    assert all(task.proof.executed == 2 and task.proof.refused for task in tasks)
    assert len({task.text for task in tasks}) == 50
    for task in tasks:
        assert not re.search(r"work.?out|shift|clock_|expression|time.?zone|/", task.text), task.text
        assert all(isinstance(call, ToolCall) for call in task.calls)
        if task.level == "told":
            assert len(task.calls) == 1
    clocks = [task for task in tasks if task.verifier.kind == "time"]
    assert clocks and any(city in task.text for task in clocks for city in CITIES)
    hour, minute = map(int, clocks[0].answer.split(":"))
    said = f"It is {(hour - 1) % 12 + 1}:{minute:02} {'pm' if hours_of_evening(hour) else 'am'}."
    assert accepted(clocks[0].verifier, said, clocks[0].calls)
    assert not accepted(clocks[0].verifier, f"{(hour + 1) % 24:02}:{minute:02}", clocks[0].calls)


def test_without_knowledge_a_request_names_the_time_zones_and_not_their_cities() -> None:
    clocks = [task for task in reckoned_tasks(knowledge=False) if task.verifier.kind == "time"]
    assert len(clocks) > 5
    for task in clocks:
        assert all(value in task.text for call in task.calls for value in call.arguments.values()), task.text


def test_operations_of_lists_and_of_a_tool_that_is_told_which_one() -> None:
    tasks = anyio.run(tasks_of_sums)
    told = [task for task in tasks if task.level == "told"]
    assert {task.calls[0].tool for task in told} == {"tally", "compute"}
    for task in told:
        given: Any = task.calls[0].arguments
        if task.calls[0].tool == "tally":
            assert float(task.answer) == sum(given["of"]["numbers"])
        else:
            one, other = given["x"], given["y"]
            right = {"minus": one - other, "times": one * other, "divide": one / other}
            assert float(task.answer) == right[given["op"]]


async def tasks_of_sums() -> list[GoalTask]:
    numbers = {"type": "object", "properties": {"numbers": {"type": "array", "items": {"type": "number"}}},
               "required": ["numbers"]}  # fmt: skip
    operation = {"type": "string", "description": "one of minus, times, divide"}
    tools = [
        {"name": "tally", "description": "Sum of numbers.",
         "inputSchema": {"type": "object", "properties": {"of": numbers}, "required": ["of"]}},
        {"name": "compute", "description": "Computes.",
         "inputSchema": {"type": "object", "required": ["x", "y", "op"],
                         "properties": {"x": {"type": "number"}, "y": {"type": "number"}, "op": operation}}},
    ]  # fmt: skip
    program = (
        f"import json; from by_hand import serve, Refused; tools = json.loads({json.dumps(json.dumps(tools))})\n"
        "def call(name, given):\n"
        "    if name == 'tally':\n"
        "        return json.dumps({'data': {'result': str(sum(given['of']['numbers']))}, 'result': {'value': "
        "sum(given['of']['numbers'])}})\n"
        "    x, y, op = given['x'], given['y'], given['op']\n"
        "    if op not in ('minus', 'times', 'divide'): raise Refused('no such operation')\n"
        "    return f'{x} {op} {y} = ' + str({'minus': x - y, 'times': x * y, 'divide': x / y if y else 0}[op])\n"
        "serve('sums', tools, call)"
    )
    where = str(Path(__file__).parents[1])
    params = StdioServer(command=sys.executable, args=("-S", "-c", program), env={"PYTHONPATH": where})
    async with Sessions() as sessions:
        session = await sessions.get(params)
        names = [tool.name for tool in session.offered]
        reckoned = Reckoned(session.offered, names, Twice(sessions, params), seed=1)
        return await reckoned.tasks({"told": 20, "worked-out": 5})


def hours_of_evening(hour: int) -> bool:
    return hour >= 12


def test_every_story_can_be_told_with_whole_numbers_that_it_does_not_give_away() -> None:
    for story in STORIES:
        told = [one for seed in range(6) if (one := story.told(random.Random(seed))) is not None]
        assert told, story.text
        for one in told:
            for each in one.sums:
                assert each.value == eval(each.written("**"))
                assert not re.search(rf"(?<!\d){each.value}(?!\d)", one.text), one.text
