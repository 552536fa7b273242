"""Which scenarios come next: none is skipped, what is solved comes seldom, and the state continues it exactly."""

import json

from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.training.curriculum import SOLVED_SHARE, Curriculum
from mcp_rl.trajectory import Trajectory, TrajectoryGroup

SERVER = StdioServer(command="true")
SCENARIOS = [McpScenario(task_description=f"Task {i}", server_params=SERVER, id=f"s{i}") for i in range(20)]


def outcome(scenario: McpScenario, solved: int, of: int = 4) -> TrajectoryGroup:
    tries = [Trajectory(scenario_id=scenario.id, success=i < solved, reward=float(i < solved)) for i in range(of)]
    return TrajectoryGroup(scenario=scenario, trajectories=tries)


def epoch(curriculum: Curriculum, solved: dict[str, int], size: int = 5) -> list[str]:
    """Take and play one epoch; returns ids in order."""
    taken: list[str] = []
    while not taken or curriculum.state["waiting"]:
        step = curriculum.take(min(size, len(curriculum.state["waiting"]) or size))
        curriculum.learned([outcome(s, solved[s.id]) for s in step])
        taken += [s.id for s in step]
    return taken


def test_the_first_epoch_has_every_scenario_once() -> None:
    curriculum = Curriculum(SCENARIOS, seed=1)
    assert sorted(epoch(curriculum, dict.fromkeys((s.id for s in SCENARIOS), 2))) == sorted(s.id for s in SCENARIOS)


def test_later_epochs_have_what_is_not_solved_once_and_a_share_of_the_rest() -> None:
    solved = {s.id: (4 if i < 12 else 0 if i < 15 else 2) for i, s in enumerate(SCENARIOS)}
    curriculum = Curriculum(SCENARIOS, seed=1)
    epoch(curriculum, solved)
    second = epoch(curriculum, solved)
    assert len(second) == len(set(second)) == 8 + 12 * SOLVED_SHARE
    assert {name for name in solved if solved[name] < 4} <= set(second)
    assert set(epoch(curriculum, solved)) != set(second)


def test_all_solved_means_all_come_again() -> None:
    curriculum = Curriculum(SCENARIOS, seed=1)
    everything = dict.fromkeys((s.id for s in SCENARIOS), 4)
    epoch(curriculum, everything)
    assert len(epoch(curriculum, everything)) == len(SCENARIOS)


def test_a_step_never_has_a_scenario_twice_across_the_end_of_an_epoch() -> None:
    curriculum = Curriculum(SCENARIOS[:7], seed=3)
    for _ in range(10):
        step = curriculum.take(5)
        assert len({s.id for s in step}) == 5
    assert len(curriculum.take(9)) == 7


def test_a_step_is_filled_even_where_nearly_all_is_solved() -> None:
    curriculum = Curriculum(SCENARIOS[:8], seed=3)
    solved = dict.fromkeys((s.id for s in SCENARIOS), 4) | {"s0": 2}
    for _ in range(12):
        step = curriculum.take(7)
        assert len({s.id for s in step}) == 7
        curriculum.learned([outcome(s, solved[s.id]) for s in step])


def test_the_state_continues_exactly() -> None:
    whole, first = Curriculum(SCENARIOS, seed=2), Curriculum(SCENARIOS, seed=2)
    for curriculum in (whole, first):
        curriculum.learned([outcome(s, i % 5) for i, s in enumerate(curriculum.take(13))])
    second = Curriculum(SCENARIOS, seed=2, state=json.loads(json.dumps(first.state)))
    for _ in range(6):
        ids = [s.id for s in whole.take(4)]
        assert [s.id for s in second.take(4)] == ids
        for curriculum in (whole, second):
            curriculum.learned([outcome(s, 4) for s in SCENARIOS if s.id in ids])
