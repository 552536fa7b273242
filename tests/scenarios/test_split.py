import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_rl.errors import ScenarioError
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall
from mcp_rl.scenarios.answer import scenario_calls
from mcp_rl.scenarios.split import overlap, split

SERVER = StdioServer(command="server")


def scenario(text: str, *calls: tuple[str, object]) -> McpScenario:
    reference = tuple(ToolCall(tool=tool, arguments={"x": value}) for tool, value in calls)  # type: ignore[dict-item]
    return McpScenario(task_description=text, server_params=SERVER, reference=reference)


def many(count: int) -> list[McpScenario]:
    return [scenario(f"task {i}", (f"tool{i % 4}", i), *([("other", i)] if i % 10 < 3 else [])) for i in range(count)]


calls = st.tuples(st.sampled_from(["add", "power", "echo"]), st.one_of(st.integers(0, 9), st.sampled_from([1.0, "1"])))
random_scenarios = st.lists(
    st.tuples(st.integers(0, 20), st.lists(calls, min_size=1, max_size=3)), min_size=2, max_size=30
).map(lambda drawn: [scenario(f"Task {n}", *steps) for n, steps in drawn])


@settings(max_examples=200, deadline=None)
@given(random_scenarios, st.floats(0.05, 0.6), st.integers(0, 5))
def test_no_call_and_no_request_is_on_both_sides(scenarios: list[McpScenario], share: float, seed: int) -> None:
    try:
        train, val = split(scenarios, val_share=share, seed=seed)
    except ScenarioError:
        return  # everything is tied together
    assert train and val
    assert len(train) + len(val) == len(scenarios)
    assert not overlap(train, val)
    assert not set().union(*map(scenario_calls, train)) & set().union(*map(scenario_calls, val))


def test_a_count_is_met_exactly_and_marked() -> None:
    train, val = split(many(100), val_count=30, seed=1)
    assert (len(train), len(val)) == (70, 30)
    assert {s.split for s in train} == {"train"} and {s.split for s in val} == {"val"}


def test_the_same_seed_gives_the_same_split_and_another_seed_another() -> None:
    first, again, other = (split(many(100), val_count=20, seed=seed)[1] for seed in (1, 1, 2))
    assert [s.id for s in first] == [s.id for s in again]
    assert [s.id for s in first] != [s.id for s in other]


def test_tools_and_step_counts_are_in_proportion() -> None:
    _, val = split(many(200), val_count=40, seed=0)
    assert Counter(len(s.reference) for s in val) == {1: 28, 2: 12}

    def ones(some: list[McpScenario]) -> Counter[str]:
        return Counter(s.reference[0].tool for s in some if len(s.reference) == 1)

    assert {tool: 5 * count for tool, count in ones(val).items()} == ones(many(200))


def test_three_and_three_point_zero_are_the_same_call() -> None:
    scenarios = [scenario("a", ("add", 3)), scenario("b", ("add", 3.0)), scenario("c", ("add", 4))]
    train, val = split(scenarios, val_count=1, seed=0)
    assert [s.task_description for s in val] == ["c"]
    assert len(train) == 2


def test_too_few_scenarios_are_named_in_one_sentence() -> None:
    with pytest.raises(ScenarioError, match="5 of 5 scenarios cannot be held out"):
        split(many(5), val_count=5)
    tied = [scenario(f"task {i}", ("same", 1), ("tool", i)) for i in range(10)]
    with pytest.raises(ScenarioError, match="Only 0 of 10 scenarios"):
        split(tied, val_count=3)


def test_the_order_of_the_scenarios_is_kept() -> None:
    shuffled = random.Random(0).sample(many(50), 50)
    train, _ = split(shuffled, val_share=0.2)
    kept = {s.id for s in train}
    assert [s.id for s in train] == [s.id for s in shuffled if s.id in kept]
