"""Programs read back from their text in a scenario's proof. Nothing is evaluated: only known parts are built."""

from __future__ import annotations

import ast
from typing import Any, get_args

from mcp_rl.scenarios.goals.program import ChosenThings, Condition, Program

_PARTS = {one.__name__: one for one in (*get_args(Program), ChosenThings, Condition)}
_LONGEST = 10_000


def read_program(text: str) -> Program | None:
    """Parse a program from its `repr`; None for any other text."""
    if len(text) > _LONGEST:
        return None
    try:
        found = _built(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return found if isinstance(found, get_args(Program)) else None


def _built(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _PARTS and not node.args:
        return _PARTS[node.func.id](**{str(one.arg): _built(one.value) for one in node.keywords})
    if isinstance(node, ast.Tuple):
        return tuple(map(_built, node.elts))
    return ast.literal_eval(node)
