"""Expressions: parsed with `ast` and interpreted against an allowlist. Nothing is ever run as Python."""

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

from arithmetic import CalculatorError, divide, exact, literal, power, square_root, within_limits

MAX_CHARACTERS = 200
MAX_DEPTH = 100
_SIGNS = str.maketrans({"\N{MULTIPLICATION SIGN}": "*", "\N{DIVISION SIGN}": "/", "\N{MINUS SIGN}": "-"})


def _floor_divide(a: Fraction, b: Fraction) -> Fraction:
    return Fraction(divide(a, b).__floor__())


def _remainder(a: Fraction, b: Fraction) -> Fraction:
    return a - b * _floor_divide(a, b)


BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: divide,
    ast.FloorDiv: _floor_divide,
    ast.Mod: _remainder,
    ast.Pow: power,
}
UNARY: dict[type[ast.unaryop], Callable[[Fraction], Fraction]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
FUNCTIONS: dict[str, Callable[[Fraction], Fraction]] = {"sqrt": square_root, "abs": abs}


def evaluate(expression: object) -> Fraction:
    """Return the exact value of an expression. Raises CalculatorError."""
    if not isinstance(expression, str):
        raise CalculatorError(f"expression must be a string, not {expression!r}.")
    if len(expression) > MAX_CHARACTERS:
        raise CalculatorError(f"The expression is too long: at most {MAX_CHARACTERS} characters.")
    source = expression.strip().translate(_SIGNS)
    if not source:
        raise CalculatorError("The expression is empty.")
    try:
        tree = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise CalculatorError(f"Cannot read the expression {expression!r}.") from None
    return _value(tree.body, source, MAX_DEPTH)


def _value(node: ast.expr, source: str, depth: int) -> Fraction:
    if not depth:
        raise CalculatorError(f"The expression is nested too deeply: at most {MAX_DEPTH} levels.")
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() as number):
            return exact("The number", number)
        case ast.Constant(value=float()):
            return literal(ast.get_source_segment(source, node) or "")
        case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
            return UNARY[type(op)](_value(operand, source, depth - 1))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            sides = _value(left, source, depth - 1), _value(right, source, depth - 1)
            return within_limits(BINARY[type(op)](*sides))
        case ast.BinOp(op=ast.BitXor()):
            raise CalculatorError("For powers, write ** instead of ^.")
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](_value(argument, source, depth - 1))
    raise CalculatorError(f"Not allowed in an expression: {ast.unparse(node)}")
