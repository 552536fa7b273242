"""A judged episode with a refused call, a sent one, a verifier's own and an answer, and with a secret in its texts."""

from typing import Any

from mcp_rl.trajectory import TrajectoryGroup

SECRET = "sk-a-secret-that-must-stay-here"
SERVER = {"transport": "stdio", "command": "x"}


def _said(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def _called(number: int, name: str, arguments: str) -> dict[str, Any]:
    call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _result(number: int, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": content}


def judged_episode() -> TrajectoryGroup:
    """Return its group."""
    request = {"model": "openai/judge", "refused": False, "prompt_tokens": 5, "completion_tokens": 2, "cost_usd": 0.5}
    sampled = [False, False, True, True, False, True, False, False, True]
    segment = {"tokens": list(range(9)), "sampled": sampled, "logprobs": [0.0] * 9}
    sent = {"turn": 1, "name": "add", "tool": "add", "arguments": {"a": SECRET}, "result": f"{SECRET}!"}
    trajectory = {
        "scenario_id": "task",
        "segments": [{**segment, "versions": [3 if one else -1 for one in sampled]}],
        "messages": [
            {"role": "user", "content": f"Use {SECRET}."},
            _called(0, "made up", "{"),
            _result(0, "There is no such tool."),
            _called(1, "add", "{}"),
            _result(1, f"{SECRET}!"),
            _said("Done."),
        ],
        "calls": [
            {"turn": 0, "name": "made up", "is_error": True, "sent": False},
            {**sent, "unix_seconds": [1003.0, 1003.5]},
        ],
        "final_state": [{"turn": 3, "name": "get", "tool": "get", "unix_seconds": [1006.0, 1006.5]}],
        "reward": 0.25,
        "success": False,
        "explanation": "Half of it.",
        "unix_seconds": [1000.0, 1007.0],
        "turn_unix_seconds": [[1000.0, 1001.0], [1002.0, 1003.0], [1004.0, 1005.0]],
        "turns": 3,
    }
    return TrajectoryGroup.model_validate(
        {
            "scenario": {"task_description": f"Use {SECRET}.", "server_params": SERVER, "id": "task"},
            "metadata": {"judge": {"requests": [{**request, "unix_seconds": [1010.0, 1012.0]}]}},
            "trajectories": [trajectory],
        }
    )
