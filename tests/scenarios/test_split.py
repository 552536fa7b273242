import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_rl.config import RunConfig
from mcp_rl.errors import ScenarioError
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall
from mcp_rl.scenarios.reference import scenario_calls
from mcp_rl.scenarios.split import divide, hold_out, overlap, split

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


@settings(max_examples=100, deadline=None)
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


def test_the_seed_decides_the_split() -> None:
    first, again, other = (split(many(100), val_count=20, seed=seed)[1] for seed in (1, 1, 2))
    assert [s.id for s in first] == [s.id for s in again]
    assert [s.id for s in first] != [s.id for s in other]


def test_tools_and_step_counts_are_in_proportion() -> None:
    _, val = split(many(200), val_count=40, seed=0)
    assert Counter(len(s.reference) for s in val) == {1: 28, 2: 12}

    def ones(some: list[McpScenario]) -> Counter[str]:
        return Counter(s.reference[0].tool for s in some if len(s.reference) == 1)

    assert {tool: 5 * count for tool, count in ones(val).items()} == ones(many(200))


def test_no_kind_of_task_is_held_out_whole_where_others_can_be() -> None:
    rare = [scenario(f"About {n}", ("begin", 1), ("rare", n)) for n in range(10)]  # tied by their first call
    common = [scenario(f"Of {n}", ("common", n)) for n in range(60)]
    _, val = split([*rare, *common], val_count=14, seed=3)
    assert Counter(one.reference[-1].tool for one in val) == {"common": 14}
    tied = [scenario(f"Of {n}", ("open", 1), ("common", n)) for n in range(12)]
    _, val = split([*rare, *tied], val_count=10, seed=3)
    assert Counter(one.reference[-1].tool for one in val) == {"rare": 10}


def test_no_level_has_more_than_twice_its_share_of_the_held_out_tasks() -> None:
    tied = [scenario(f"spelled {number}", ("read", number % 10), ("read", (number + 1) % 10)) for number in range(80)]
    free = [scenario(f"told {n}", ("tell", n)).model_copy(update={"level": "told"}) for n in range(20)]
    _, val = hold_out([*tied, *free], 20)
    assert Counter(s.level for s in val)["told"] <= 8, "others share a few calls, but told tasks are to be learned too"


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


# -- where almost all is tied together


def strongly_tied(count: int) -> list[McpScenario]:
    """Scenarios of a server with a state: each takes one of a few common calls, and one of its own."""
    common = [scenario(f"common {i}", ("take", i % 12), ("add", i)) for i in range(count)]
    return common + [scenario(f"two {i}", ("take", i), ("take", (i + 1) % 12)) for i in range(12)]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_where_all_is_tied_a_few_are_set_aside(seed: int) -> None:
    scenarios = strongly_tied(400)
    with pytest.raises(ScenarioError, match="Only 0 of 412 scenarios"):
        split(scenarios, val_count=120, seed=seed)
    divided = divide(scenarios, RunConfig(server="x", seed=seed))
    assert len(divided.val) == 120 and not overlap(divided.train, divided.val)
    aside = len(scenarios) - len(divided.train) - 120
    assert 0 < aside <= len(scenarios) // 4
    assert f"120 of 412 scenarios are held out, and {aside} that share a call or a request" in divided.notice
    assert divide(scenarios, RunConfig(server="x", seed=seed)) == divided


@settings(max_examples=100, deadline=None)
@given(random_scenarios, st.integers(1, 12), st.integers(0, 3))
def test_a_division_shares_nothing_and_keeps_most(scenarios: list[McpScenario], val: int, seed: int) -> None:
    try:
        divided = divide(scenarios, RunConfig(server="x", scenarios={"val": val}, seed=seed))
    except ScenarioError as error:
        assert "at least" in str(error)
        return
    assert not overlap(divided.train, divided.val)
    assert 1 <= len(divided.val) <= val and divided.train
    assert len(scenarios) - len(divided.train) - len(divided.val) <= len(scenarios) // 4
    assert bool(divided.notice) or len(divided.val) == val


def test_untied_scenarios_are_held_out_without_a_word() -> None:
    divided = divide(many(400), RunConfig(server="x"))
    assert (len(divided.train), len(divided.val), divided.notice) == (280, 120, "")


@pytest.mark.parametrize(("count", "held", "points"), [(2, 1, 45), (3, 1, 45), (12, 4, 35), (60, 20, 20)])
def test_a_small_file_holds_out_a_third_and_says_so(count: int, held: int, points: int) -> None:
    divided = divide(many(count), RunConfig(server="x"))
    assert (len(divided.train), len(divided.val)) == (count - held, held)
    assert f"{held} of {count} scenarios {'is' if held == 1 else 'are'} held out" in divided.notice
    assert f"known to about ±{points} points; 360 scenarios would allow 120 (scenarios.val)" in divided.notice


def test_a_division_names_tools_that_are_not_measured() -> None:
    scenarios = [*many(400), *(scenario(f"list {i}", ("list", 0)) for i in range(300))]
    assert divide(scenarios, RunConfig(server="x")).notice == (
        "No held-out scenario uses list, so success there is not measured."
    )


def test_nothing_to_hold_out_is_refused_with_a_way_out() -> None:
    with pytest.raises(ScenarioError, match=r"1 scenario cannot be divided: .*at least one to train on and another"):
        divide(many(1), RunConfig(server="x"))
    tied = [scenario(f"task {i}", ("same", 1), ("tool", i)) for i in range(100)]
    with pytest.raises(ScenarioError, match=r"Only 0 of 100 scenarios .* at least 8 are needed: add .*generate"):
        divide(tied, RunConfig(server="x"))
    one = [tied[0].model_copy(update={"split": "val"}), *tied[1:]]
    assert (len(divide(one, RunConfig(server="x")).train), divide(one, RunConfig(server="x")).notice) == (99, "")


def test_scenarios_for_tests_are_neither_trained_on_nor_held_out() -> None:
    scenarios = [s.model_copy(update={"split": "test"}) if i < 30 else s for i, s in enumerate(many(90))]
    divided = divide(scenarios, RunConfig(server="x"))
    assert (len(divided.train), len(divided.val)) == (40, 20)
    with pytest.raises(ScenarioError, match=r"30 scenarios cannot be divided \(0 to train on, 0 marked"):
        divide(scenarios[:30], RunConfig(server="x"))


def test_combinations_are_held_out_too() -> None:
    pairs = [scenario(f"task {i}", (f"tool{i % 5}", i), (f"tool{i % 7}", i)) for i in range(200)]
    hub = [scenario(f"hub {i}", ("hub", 0), ("own", i)) for i in range(200)]
    train, val = hold_out([*pairs, *hub], 100, by="combinations")
    assert len(train) > 200 and 20 < len(val) <= 100
    assert not overlap(train, val, by="combinations")
