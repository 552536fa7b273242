import json
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mcp_rl.errors import ScenarioError, VerifierError
from mcp_rl.evaluation.scripted import reference
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.rewards.answers import as_written
from mcp_rl.rewards.json_values import same_json
from mcp_rl.rewards.verdict import Verdict
from mcp_rl.rewards.verifier import check_verifiers, verify
from mcp_rl.scenario import McpScenario, StdioServer, Verifier
from mcp_rl.trajectory import CallRecord, StopReason, Trajectory

KINDS = load_plugins().verifiers


def scenario(kind: str, expected: Any, **options: Any) -> McpScenario:
    return McpScenario(
        task_description="task",
        server_params=StdioServer(command="server"),
        verifier=Verifier(kind=kind, expected=expected, options=options),
    )


def call(tool: str = "add", is_error: bool = False, sent: bool = True, **arguments: Any) -> CallRecord:
    return CallRecord(turn=0, name=tool, tool=tool, arguments=arguments, is_error=is_error, sent=sent)


def trajectory(answer: str | None, *calls: CallRecord, stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    messages = [{"role": "user", "content": "task"}, {"role": "assistant", "content": "The total is 99."}]
    messages += [{"role": "tool", "content": "7"}, {"role": "assistant", "content": answer}]
    return Trajectory(scenario_id="s", messages=messages, calls=list(calls), stop_reason=stop)


def success(made: Trajectory, task: McpScenario) -> bool | None:
    verify(made, task, KINDS)
    assert made.explanation
    if made.success is not None:
        assert made.reward == made.metrics["verifier"] == float(made.success)
    return made.success


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("7", True),
        ("The answer is 7.", True),
        ("3 + 4 = **7**", True),
        ("It is 7.0000001", True),
        ("$7.00", True),
        ("7 apples", True),
        ("7 or 8", False),
        ("8, not 7, or rather 9", False),
        ("17", False),
        ("-7", False),
        ("seven", False),
        ("v7", False),
        ("", False),
    ],
)
def test_the_last_number_of_the_final_message_counts(answer: str, right: bool) -> None:
    assert success(trajectory(answer, call()), scenario("number", 7)) is right


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("1,234,567.5", 1234567.5),
        ("6.02e23", 6.02e23),
        ("\u2212 no, \u221212", -12),
        ("x = .5", 0.5),
        ("\\boxed{0.25}", 0.25),
        ("about 1e-07", 1e-7),
        ("(−5)", -5),  # noqa: RUF001
        ("It has 552B.", 552),
        ("The answer is 42 (took 30ms).", 42),
        ("$100,000", 100_000),
        ("0", 0),
    ],
)
def test_numbers_are_read_in_the_ways_that_models_write_them(answer: str, expected: float) -> None:
    assert success(trajectory(answer, call()), scenario("number", expected))


@pytest.mark.parametrize("number", [2, 2.5, 5])
def test_a_number_that_a_letter_multiplies_is_none(number: float) -> None:
    assert success(trajectory("2.5K", call()), scenario("number", number)) is False


def test_tolerance_is_relative_and_can_be_set() -> None:
    assert success(trajectory("1000001", call()), scenario("number", 1e6)) is True
    assert success(trajectory("1000002", call()), scenario("number", 1e6)) is False
    assert success(trajectory("0.000002", call()), scenario("number", 1e-6)) is False
    assert success(trajectory("1010000", call()), scenario("number", 1e6, tolerance=0.02)) is True
    assert success(trajectory("0.0000001", call()), scenario("number", 0)) is True


@pytest.mark.parametrize(
    ("expected", "answer", "right"),
    [
        (1314119, "It is 1,314,119.", True),
        (1314119, "It is 1314120.", False),
        (1314119.0, "It is 1314120.", True),
        (2**60, f"It is {2**60}.", True),
    ],
)
def test_a_whole_number_is_compared_exactly(expected: float, answer: str, right: bool) -> None:
    assert success(trajectory(answer, call()), scenario("number", expected)) is right
    assert success(trajectory(f"Oslo, {answer}", call()), scenario("parts", ["Oslo", expected])) is right
    assert success(trajectory(answer, call()), scenario("number", expected, tolerance=1e-6)) is True


@pytest.mark.parametrize("kind", ["number", "text"])
def test_an_answer_without_a_successful_tool_call_is_wrong(kind: str) -> None:
    for calls in ([], [call(is_error=True)], [call(sent=False)]):
        assert success(trajectory("7", *calls), scenario(kind, 7 if kind == "number" else "7")) is False
    free = scenario(kind, 7 if kind == "number" else "7", require_tool=False, max_calls=0)
    assert success(trajectory("7"), free) is True
    assert success(trajectory("7", call("add")), free) is False


@pytest.mark.parametrize("stop", [StopReason.MAX_TURNS, StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL])
def test_what_was_never_submitted_does_not_count(stop: StopReason) -> None:
    assert success(trajectory("7", call(), stop=stop), scenario("number", 7)) is False


@pytest.mark.parametrize("stop", [StopReason.FAULT, StopReason.TIMEOUT])
def test_faults_and_timeouts_are_not_scored(stop: StopReason) -> None:
    made = trajectory("7", call(), stop=stop)
    assert success(made, scenario("number", 7)) is None
    assert made.reward is None and "verifier" not in made.metrics


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("Echo: hello world", True),
        ("  echo:  HELLO   world. ", True),
        ('The tool said "Echo: hello world".', True),
        ("Echo: hello", False),
        ("Echo: hello worldwide", False),
        ("Re-echo hello the world", False),
        ("Echo: hello world " + "and also this " * 30, False),
    ],
)
def test_text_must_stand_in_a_final_message_that_is_not_a_dump(answer: str, right: bool) -> None:
    assert success(trajectory(answer, call()), scenario("text", "Echo: hello world")) is right


def test_text_numbers_keep_their_sign_and_point() -> None:
    assert success(trajectory("-3.5 C", call()), scenario("text", "-3.5")) is True
    assert success(trajectory("3.5 C", call()), scenario("text", "-3.5")) is False
    assert success(trajectory("3.55 C", call()), scenario("text", "3.5")) is False


def test_exact_text_and_text_without_any_word() -> None:
    assert success(trajectory("It says: Kim", call()), scenario("text", "Kim", exact=True)) is False
    assert success(trajectory("kim.", call()), scenario("text", "Kim", exact=True)) is True
    assert success(trajectory("It is ?!", call()), scenario("text", "?!")) is True
    assert success(trajectory("It is !", call()), scenario("text", "?!")) is False


def wanted(*calls: tuple[str, dict[str, Any]], **options: Any) -> McpScenario:
    return scenario("calls", [{"tool": tool, "arguments": arguments} for tool, arguments in calls], **options)


def test_calls_are_compared_as_json_with_defaults_filled_in() -> None:
    task = wanted(("list", {"path": "/a", "depth": 3}), defaults={"list": {"sort": "name"}})
    assert success(trajectory("Done.", call("list", depth=3.0, path="/a")), task) is True
    assert success(trajectory("Done.", call("list", path="/a", depth=3, sort="name")), task) is True
    assert success(trajectory("Done.", call("list", path="/a", depth=3, sort="size")), task) is False
    assert success(trajectory("Done.", call("list", path="/a", depth="3")), task) is False
    assert success(trajectory("Done.", call("tree", path="/a", depth=3)), task) is False


def test_order_counts_unless_it_is_said_not_to() -> None:
    both = (("a", {}), ("b", {"x": 1}))
    backwards = trajectory("Done.", call("b", x=1), call("a"))
    assert success(backwards, wanted(*both)) is False
    assert "in the order" in (backwards.explanation or "")
    assert success(backwards, wanted(*both, ordered=False)) is True
    assert success(trajectory("Done.", call("a"), call("c"), call("b", x=1)), wanted(*both)) is True


def test_one_call_does_not_stand_for_two() -> None:
    twice = wanted(("a", {}), ("a", {}), ordered=False)
    assert success(trajectory("Done.", call("a")), twice) is False
    assert success(trajectory("Done.", call("a"), call("a")), twice) is True


def test_failed_calls_neither_count_nor_harm() -> None:
    task = wanted(("a", {"x": 1}))
    assert success(trajectory("Done.", call("a", x=1, is_error=True)), task) is False
    errors = [call("a", x=i, is_error=True) for i in range(2, 9)]
    assert success(trajectory("Done.", *errors, call("a", x=1)), task) is True
    spray = [call("a", x=i) for i in range(10)]
    assert success(trajectory("Done.", *spray), task) is False
    assert success(trajectory("Done.", *spray), wanted(("a", {"x": 1}), extra=20)) is True


def test_calls_need_a_final_message_with_something_in_it() -> None:
    task = wanted(("a", {}))
    assert success(trajectory("  ", call("a")), task) is False
    assert success(trajectory("Done.", call("a"), stop=StopReason.MAX_TURNS), task) is False
    assert success(trajectory("", call("a")), wanted(("a", {}), require_answer=False)) is True


def test_json_equality() -> None:
    assert same_json({"a": [1, 2.0]}, {"a": [1.0, 2]})
    assert not same_json(True, 1) and not same_json([1], [1, 2]) and not same_json({"a": 1}, {"a": 1, "b": 2})
    assert same_json(None, None) and not same_json(None, 0)


def test_a_users_function_is_used_and_its_score_checked() -> None:
    kinds = {**KINDS, "half": lambda made, task: Verdict(0.5, "half", {"length": 3.0})}
    made = trajectory("x", call())
    verify(made, scenario("half", None), kinds)
    assert (made.reward, made.success, made.metrics) == (0.5, False, {"length": 3.0, "verifier": 0.5})
    with pytest.raises(VerifierError, match="returned the score"):
        verify(made, scenario("bad", None), {"bad": lambda made, task: Verdict(math.nan, "")})


def test_unscorable_scenarios_are_refused_before_a_run() -> None:
    check_verifiers([scenario("number", 1), scenario("text", "a"), wanted(("a", {}))], KINDS)
    with pytest.raises(ScenarioError, match="did you mean 'number'"):
        check_verifiers([scenario("numbers", 1)], KINDS)
    with pytest.raises(ScenarioError, match="has no verifier"):
        check_verifiers([McpScenario(task_description="t", server_params=StdioServer(command="s"))], KINDS)
    for kind, expected in (("number", "7"), ("number", True), ("text", " "), ("calls", []), ("calls", ["add"])):
        with pytest.raises(ScenarioError, match="expects"):
            check_verifiers([scenario(kind, expected)], KINDS)


def test_the_order_of_objects_in_a_final_state_may_not_count() -> None:
    listed = '{"notes": [{"id": 1, "tags": ["a", "b"]}, {"id": 2, "tags": []}]}'
    turned = '{"notes": [{"tags": [], "id": 2}, {"id": 1, "tags": ["a", "b"]}]}'
    other = '{"notes": [{"id": 2, "tags": []}, {"id": 1, "tags": ["b", "a"]}]}'
    looks = {"tool": "look", "arguments": {}, "result": listed}
    for options, told, right in (
        ({"unordered": True}, turned, True),
        ({"unordered": True}, other, False),
        ({"unordered": True}, listed.replace("1", "3"), False),
        ({}, turned, False),
    ):
        made = trajectory("Done.")
        made.final_state = [CallRecord(turn=0, name="look", tool="look", arguments={}, result=told)]
        assert success(made, scenario("state", [looks], require_answer=False, **options)) is right
        as_json = {**looks, "result": json.loads(listed)}
        assert success(made, scenario("state", [as_json], require_answer=False, **options)) is right


def test_times_in_a_final_state_may_be_others() -> None:
    looks = {"tool": "look", "arguments": {}, "result": "size: 3\nmodified: <time>"}
    task = scenario("state", [looks], undated=True, require_answer=False)
    for told, right in (("size: 3\nmodified: 2026-11-23T02:45:10Z", True), ("size: 4\nmodified: 2026-11-23", False)):
        made = trajectory("Done.")
        made.final_state = [CallRecord(turn=0, name="look", tool="look", arguments={}, result=told)]
        assert success(made, task) is right


def test_the_seconds_that_a_look_took_do_not_count() -> None:
    looks = {"tool": "look", "arguments": {}, "result": "size: 3. Took 2 ms."}
    for told, right in (("size: 3. Took 17 ms.", True), ("size: 4. Took 2 ms.", False)):
        made = trajectory("Done.")
        made.final_state = [CallRecord(turn=0, name="look", tool="look", arguments={}, result=told)]
        assert success(made, scenario("state", [looks], require_answer=False)) is right


@pytest.mark.parametrize(
    ("text", "value", "written"),
    [
        ("Gross Profit: $1,835.00\nRevenue: $1,880.00", 1835, "1,835.00"),
        ("Change: $-55.00", -55, "-55.00"),
        ('{"result": 24.829418035870273, "number": 616.5}', 24.829418035870273, "24.829418035870273"),
        ("12 files, 3 folders", 3, "3"),
        ("none", 1, None),
        ("552B", 552, None),
    ],
)
def test_a_number_is_found_as_it_is_written(text: str, value: float, written: str | None) -> None:
    assert as_written(text, value) == written


def test_a_demonstration_says_a_number_as_the_result_does() -> None:
    task = scenario("number", 1835.0, require_tool=False)
    task = task.model_copy(update={"reference_answer": "Gross Profit: $1,835.00"})
    [(said, _)] = reference(task, cast("Any", SimpleNamespace(schemas=SimpleNamespace(to_openai={}))))
    assert said == "1,835.00"
    assert success(trajectory(said), task)
