"""The verifier of dates and times of day: the value counts, and not how it is written."""

import pytest

from mcp_rl.scenario import ToolCall, Verifier
from mcp_rl.scenarios.goals.task import accepted

GIT = "2026-05-04 14:30:15+02:00"


@pytest.mark.parametrize(
    ("expected", "answer", "right"),
    [
        ("15:35", "It is 3:35 pm in Lima.", True),
        ("15:35", "When it is 09:00 in Oslo, it is 15:35 there.", True),
        ("15:35", "15:35 there, when it is 09:00 in Oslo.", False),
        ("15:35", "It is 3:35.", False),
        ("00:00", "At midnight.", True),
        ("15:00", "3 p.m.", True),
        ("15:35", "I do not know.", False),
        ("15:35", "At 15:33, 15:34 or 15:35.", False),
        ("2026-05-04", "On May 4, 2026.", True),
        ("2026-05-04", "On the 4th of May 2026.", True),
        ("2026-05-04", "On 2026-05-05.", False),
        (GIT, "4 May 2026 at 14:30", True),
        (GIT, "2026-05-04T12:30:15Z", True),
        (GIT, "2026-05-04T14:30:15Z", False),
        (GIT, "14:30", False),
        ("14:00 UTC", "It starts at 14:00 UTC.", True),
        ("14:00 UTC", "It starts at 14:00.", True),
        ("14:00 UTC", "It starts at 14:00 GMT+02:00.", False),
        ("2026-05-04T14:00:00+02:00", "At 2026-05-04 14:00 UTC.", False),
        ("2026-05-04T14:00:00+02:00", "At 2026-05-04T12:00 UTC.", True),
        ("2026-05-04T14:00:00Z", "On 4 May 2026 at 14:00 UTC.", True),
        (GIT, "4 May 2026", False),
        ("Mon May 04 2026 14:30:15 GMT+0200", "2026-05-04 14:30:15", True),
    ],
)
def test_a_time_is_right_in_any_common_form(expected: str, answer: str, right: bool) -> None:
    made = (ToolCall(tool="look", arguments={}),)
    assert accepted(Verifier(kind="time", expected=expected), answer, made) is right
    assert not accepted(Verifier(kind="time", expected=expected), answer, ())
