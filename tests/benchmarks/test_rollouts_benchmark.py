"""The contenders of `benchmarks/rollouts.py` work; tests do not judge its figures."""

from benchmarks import chat_stub
from benchmarks.rollout_contenders import CALCULATOR, CONTENDERS, GROUP, server
from benchmarks.rollouts import table, targets


async def test_every_contender_solves_its_episodes() -> None:
    with chat_stub.running() as url, server(CALCULATOR, "stdio") as params:
        for contender in CONTENDERS.values():
            async with contender(params, url) as play:
                await play(GROUP)


def test_a_missed_target_is_marked() -> None:
    row = {"per_second": 100.0, "best_per_second": 120.0, "cpu_ms": 5.0, "over_by_hand": 0.79}
    found = {
        "episodes": {"stdio": {"by_hand": row, "chat_model": row, "scripted": {**row, "over_by_hand": 1.5}}},
        "slow_tool": {"stdio": {"ratio": 1.3}},
        "calls": {"ours_beyond_sdk_ms": -0.1},
    }
    assert [(t["what"], t["reached"]) for t in targets(found)] == [
        ("chat model over by hand, stdio", False),
        ("scripted engine over by hand, stdio", True),
        ("all episodes over the longest, slow tool, stdio", False),
        ("CPU ms of a call beyond the SDK's", True),
    ]
    assert "| stdio | by_hand | 100 | 120 | 5 | 0.79 |" in table(found)
