"""A thousand random faults of a real judge on loopback: no group is lost, and no score goes to another trajectory."""

import json
import random
from collections import Counter

import anyio
from judge_server import fenced, scores, serve
from starlette.responses import JSONResponse, Response
from test_ruler import MISBEHAVIOUR, by_answer, trajectory

from mcp_rl.rewards.judge import Judge
from mcp_rl.rewards.panel import Panel
from mcp_rl.rewards.ruler import ruler_prompt
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import TrajectoryGroup

FAULTS = 1000
MARKS = {"good": 1.0, "fair": 0.5, "bad": 0.0}


def cut_in_a_number(prompt: str, ids: list[str]) -> str:
    return scores(dict.fromkeys(ids, 0.987654321)).rpartition("7654")[0]


def cut_off(prompt: str, ids: list[str]) -> Response:
    text = by_answer(prompt, ids)
    message = {"role": "assistant", "content": text[: len(text) * 2 // 3]}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    return JSONResponse(
        {"id": "x", "object": "chat.completion", "created": 0, "model": "judge", "choices": [choice], "usage": usage}
    )


def last_score_missing(prompt: str, ids: list[str]) -> str:
    entries = json.loads(by_answer(prompt, ids))["scores"]
    del entries[-1]["score"]
    return json.dumps({"scores": entries})


def ids_of_another_group(prompt: str, ids: list[str]) -> str:
    return scores({f"{int(id, 16) ^ 1:08x}": 0.9 for id in ids})


def true_as_score(prompt: str, ids: list[str]) -> str:
    return scores(dict.fromkeys(ids, 1.0)).replace("1.0", "true")


def decimal_commas(prompt: str, ids: list[str]) -> str:
    return scores(dict.fromkeys(ids, 0.25)).replace("0.25", "0,25")


def two_answers_that_differ(prompt: str, ids: list[str]) -> str:
    return scores(dict.fromkeys(ids[1:], 0.2)) + "\nOr rather:\n" + scores(dict.fromkeys(ids[1:], 0.9))


KINDS = {
    **MISBEHAVIOUR,
    "cut in a number": cut_in_a_number,
    "cut off": cut_off,
    "last score missing": last_score_missing,
    "ids of another group": ids_of_another_group,
    "true as score": true_as_score,
    "decimal commas": decimal_commas,
    "two answers that differ": two_answers_that_differ,
}


async def test_no_group_is_lost_or_mixed_up_in_a_thousand_random_faults() -> None:
    source, faults = random.Random(0), Counter[str]()

    def moody(prompt: str, ids: list[str]) -> str | Response:
        if sum(faults.values()) >= FAULTS or source.random() < 0.15:
            return by_answer(prompt, ids)
        kind = source.choice(sorted(KINDS))
        faults[kind] += 1
        return KINDS[kind](prompt, ids)

    judged: list[TrajectoryGroup] = []
    with serve(moody) as server:
        panel = Panel([Judge("openai/judge", server.url, retries=500, backoff=0.0)], ruler_prompt())

        async def judge_until_all_faults_were_made(worker: int) -> None:
            number = 0
            while sum(faults.values()) < FAULTS:
                number += 1
                name = f"{worker} {number}"
                asked = McpScenario(task_description=f"Task {name}.", server_params=StdioServer(command="x"))
                answers = [f"{source.choice(sorted(MARKS))} {name} {i}" for i in range(source.randint(2, 5))]
                group = TrajectoryGroup(scenario=asked, trajectories=[trajectory(answer) for answer in answers])
                judged.append(await panel.score(group))

        async with anyio.create_task_group() as tasks:
            for worker in range(8):
                tasks.start_soon(judge_until_all_faults_were_made, worker)

    assert sum(faults.values()) == FAULTS and set(faults) == set(KINDS)
    assert len(server.requests) == FAULTS + len(judged)
    for group in judged:
        assert [t.reward for t in group] == [MARKS[t.messages[-1]["content"].split()[0]] for t in group]
    assert all(len(fenced(prompt)) >= 2 for prompt in server.prompts)
