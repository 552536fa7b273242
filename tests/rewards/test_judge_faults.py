"""Random faults of a judge on loopback: no group is lost, and no score goes to another trajectory."""

from benchmarks.judge_faults import BAD_REPLIES, HOSTILE_TOOL, KINDS, ODD_REPLIES, REFUSAL, SLOW_REPLIES, run_faults

FAULTS = 400
DEADLINE = 2.0
"""Seconds for a reply. A right reply may take most of one on a busy machine, and must not count as a fault."""


async def test_random_faults_lose_and_mix_up_no_group() -> None:
    found = await run_faults(FAULTS, share=0.75, deadline=DEADLINE)
    kinds = found.kinds
    assert sum(fate.faults for fate in kinds.values()) == FAULTS
    assert set(kinds) == set(KINDS) and all(fate.faults >= 3 for fate in kinds.values())
    assert not any(fate.lost or fate.misassigned for fate in kinds.values())
    assert found.groups == found.scored + found.unscored and found.scored > found.unscored > 0
    for kind in (*BAD_REPLIES, *SLOW_REPLIES, REFUSAL):
        assert kinds[kind].used == 0, kind
        assert kinds[kind].asked_again + kinds[kind].given_up == kinds[kind].faults, kind
    for kind in (*ODD_REPLIES, HOSTILE_TOOL):
        assert kinds[kind].used > 0, kind
    among_words = kinds["right, among words"]
    assert among_words.used >= 0.8 * among_words.faults, (
        "all that came in time; a busy machine misses a deadline now and then"
    )
