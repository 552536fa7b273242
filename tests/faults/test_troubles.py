"""Rollouts on a server that breaks in a call: spoilt rollouts are played again, and nothing is sent twice.

Each test covers one misbehaviour over every transport that it applies to, concurrently. `Outcome.check` asserts what
holds for all of them: no process is left, no call reached the server twice, and every fault is one sentence.
"""

import time
from pathlib import Path

import pytest
from hostile import MEMBERS, hostile, over, played

from mcp_rl.toolserver.connection import owner, raw_session

CALL = 1.5
"""Seconds for a call that gets no answer; other calls need a hundredth of that."""


async def test_a_server_that_exits_in_the_middle_of_a_call(tmp_path: Path) -> None:
    for outcome in (await over(tmp_path, trouble="exit")).values():
        outcome.check()
        outcome.refilled("exited in the middle of the run|was lost in a call of write|cannot be used at")


async def test_a_repeatable_call_is_repeated_once_after_an_exit(tmp_path: Path) -> None:
    for outcome in (await over(tmp_path, trouble="exit", tool="read")).values():
        outcome.check(repeated=("read",))
        outcome.refilled("exited in the middle of the run|was lost in a call of read|cannot be used at")
        assert sum(call["n"] == 0 for call in outcome.calls) <= 2


async def test_an_answer_after_the_deadline_reaches_nobody(tmp_path: Path) -> None:
    for outcome in (await over(tmp_path, trouble="late", call=CALL)).values():
        outcome.check()
        outcome.refilled(r"did not answer a call of write within 1\.5 s")


async def test_no_answer_at_all(tmp_path: Path) -> None:
    for outcome in (await over(tmp_path, trouble="never", call=CALL)).values():
        outcome.check()
        outcome.refilled(r"did not answer a call of write within 1\.5 s")
        assert outcome.seconds < 60


async def test_an_answer_that_is_garbage(tmp_path: Path) -> None:
    for outcome in (await over(tmp_path, trouble="garbage", call=CALL)).values():
        outcome.check()
        outcome.refilled(r"did not answer a call of write within|something that is not JSON-RPC")


async def test_half_an_answer(tmp_path: Path) -> None:
    """On stdio it also spoils the next answer, since both share a line."""
    for outcome in (await over(tmp_path, trouble="half", call=CALL)).values():
        outcome.check()
        outcome.refilled(r"did not answer a call of write within|was lost in a call of write")


async def test_a_server_that_hangs_up(tmp_path: Path) -> None:
    for outcome in (await over(tmp_path, trouble="hang_up")).values():
        outcome.check()
        outcome.refilled("was lost in a call of write|exited in the middle")


@pytest.mark.parametrize("status", [404, 500])
async def test_a_status_instead_of_an_answer(tmp_path: Path, status: int) -> None:
    found = await over(tmp_path, transports=["sse", "streamable-http"], trouble=f"status{status}", call=CALL)
    for outcome in found.values():
        outcome.check()
        outcome.refilled(f"was lost in a call of write: (HTTP status {status}|Connection closed)")


async def test_an_error_of_the_server_is_no_fault(tmp_path: Path) -> None:
    for outcome in (await over(tmp_path, trouble="error")).values():
        outcome.check()
        outcome.unharmed()
        assert outcome.group is not None and outcome.group.trajectories[0].final_answer == "no luck"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_a_flood_of_what_is_no_message(tmp_path: Path, stream: str) -> None:
    for outcome in (await over(tmp_path, trouble=stream)).values():
        outcome.check()
        outcome.unharmed()


async def test_a_server_that_is_stuck_is_found_out_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "_PING_SECONDS", 0.5)
    [outcome] = (await over(tmp_path, transports=["stdio"], trouble="freeze", call=CALL, redos=4)).values()
    outcome.check()
    outcome.refilled("did not answer a call of write within|cannot be used any more: it no longer answers")


async def test_an_unanswered_post_delays_no_other_answer(tmp_path: Path) -> None:
    [outcome] = (await over(tmp_path, transports=["streamable-http"], trouble="stall", call=CALL)).values()
    outcome.check()
    outcome.refilled("did not answer a call of write within")
    assert len(outcome.faults) == 1


async def test_a_huge_answer_delays_no_other_call(tmp_path: Path) -> None:
    """Over SSE it ends the session and spoils the other calls, since the SDK reads no event above one megabyte."""
    before = time.process_time()
    outcomes = await over(tmp_path, trouble="huge")
    by_sse = outcomes.pop("sse")
    by_sse.check()
    by_sse.refilled("was lost in a call of write: (Server-sent event exceeded|Connection closed)")
    for outcome in outcomes.values():
        outcome.refused_first("16 MB")
    assert time.process_time() - before < 20, "it took thirty seconds when a line was read in quadratic time"


async def test_a_message_of_a_million_values_is_not_read(tmp_path: Path) -> None:
    """One of the largest size held the event loop for five seconds and took 1.7 GB."""
    outcomes = await over(tmp_path, trouble="values")
    by_sse = outcomes.pop("sse")
    by_sse.check()
    by_sse.refilled("was lost in a call of write")
    for outcome in outcomes.values():
        outcome.refused_first("more than 250,000 values")


async def test_a_body_of_any_type_is_read_up_to_the_limit(tmp_path: Path) -> None:
    [outcome] = (await over(tmp_path, transports=["streamable-http"], trouble="endless")).values()
    outcome.refused_first("16 MB")
    assert max(call["n"] for call in outcome.calls if call["tool"] == "sent") < 40, "megabytes"


async def test_requests_by_a_server_that_reads_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_session, "UNREAD_SECONDS", 1.0)
    [outcome] = (await over(tmp_path, transports=["stdio"], trouble="requests", redos=4)).values()
    outcome.check()
    outcome.refilled("cannot be used any more: it sent requests and left 256 answers unread")
    assert outcome.seconds < 60


async def test_a_burst_of_requests_by_a_server_that_reads_answers(tmp_path: Path) -> None:
    [outcome] = (await over(tmp_path, transports=["stdio"], trouble="burst")).values()
    outcome.check()
    outcome.unharmed()


async def test_a_server_that_ignores_signals_and_leaves_processes(tmp_path: Path) -> None:
    for mode in ("stays", "leaks"):
        folder = tmp_path / mode
        folder.mkdir()
        for outcome in (await over(folder, mode=mode)).values():
            outcome.check()
            outcome.unharmed()


@pytest.mark.parametrize("isolation", ["reset", "per-rollout"])
async def test_servers_with_a_state_are_replaced_one_by_one(tmp_path: Path, isolation: str) -> None:
    """Only the rollout on the broken connection is played again."""
    found = await over(tmp_path, trouble="exit", isolation=isolation)
    for outcome in found.values():
        outcome.check()
        outcome.refilled("exited in the middle of the run|lost its session, and the state with it")
        assert len(outcome.faults) == 1 and len(outcome.calls) == MEMBERS + 1


async def test_an_endless_trouble_stops_the_run_with_one_sentence(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    params = hostile("stdio", log, "--chance", "1.1", "--seed", "7")
    outcome = await played(params, log, call=0.3, redos=0)
    outcome.check()
    assert "rollouts failed, more than the 0 allowed. The first failure: The server hostile" in outcome.stopped
