"""Exact arithmetic with limits, and the conversion of numbers from and to text and JSON."""

from decimal import Context, Decimal, Inexact, InvalidOperation, localcontext
from fractions import Fraction
from math import isfinite, isqrt, log10
from typing import Any

EXACT_DIGITS = 15
"""A decimal of at most this many significant digits is not rounded."""
ROUNDED_DIGITS = 10
"""Any other fractional result is rounded to this many significant digits, but never within its whole part."""
MAX_DIGITS = 100
"""Limit of digits before the decimal point of a result, and of zeros after it."""
MAX_EXPONENT = 1000
_WORKING_DIGITS = 60
_LIMIT = Fraction(10**MAX_DIGITS)
_OVERFLOW = f"Overflow: the number has more than {MAX_DIGITS} digits."
_UNDERFLOW = "Underflow: the number is too close to zero."


class CalculatorError(Exception):
    """Something that cannot be computed; the model reads the message."""


def exact(name: str, value: Any) -> Fraction:
    """Return the number as written: the float 0.1 is one tenth."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CalculatorError(f"{name} must be a number, not {value!r}.")
    if isinstance(value, int):
        return within_limits(Fraction(value))
    if not isfinite(value):
        raise CalculatorError(f"{name} is not a finite number.")
    return within_limits(Fraction(repr(value)))


def literal(text: str) -> Fraction:
    """Return the exact value of a decimal literal, such as 0.1 or 2.5e-3."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise CalculatorError(f"Cannot read the number {text}.") from None
    if value and abs(value.adjusted()) > MAX_DIGITS:  # before its digits are written out
        raise CalculatorError(_OVERFLOW if value.adjusted() > 0 else _UNDERFLOW)
    return within_limits(Fraction(value))


def within_limits(value: Fraction) -> Fraction:
    if abs(value) >= _LIMIT:
        raise CalculatorError(_OVERFLOW)
    if value and abs(value) * _LIMIT < 1:
        raise CalculatorError(_UNDERFLOW)
    return value


def divide(a: Fraction, b: Fraction) -> Fraction:
    if not b:
        raise CalculatorError("Division by zero.")
    return a / b


def power(base: Fraction, exponent: Fraction) -> Fraction:
    if not base and exponent < 0:
        raise CalculatorError("Division by zero: 0 has no negative power.")
    if abs(exponent) > MAX_EXPONENT:
        raise CalculatorError(f"The exponent is too large: at most {MAX_EXPONENT}.")
    if base and abs(digits := exponent * _log10(base)) > MAX_DIGITS + 1:
        raise CalculatorError(_OVERFLOW if digits > 0 else _UNDERFLOW)
    if exponent.denominator == 1:
        return _whole_power(base, exponent.numerator)
    if base < 0:
        raise CalculatorError("Not a real number: a negative base needs a whole exponent.")
    if exponent == Fraction(1, 2):
        return square_root(base)
    with localcontext(Context(prec=_WORKING_DIGITS)):
        return Fraction(_decimal(base) ** _decimal(exponent)) if base else Fraction(0)


def square_root(number: Fraction) -> Fraction:
    if number < 0:
        raise CalculatorError("Not a real number: the square root of a negative number.")
    root = Fraction(isqrt(number.numerator), isqrt(number.denominator))
    if root * root == number:
        return root
    with localcontext(Context(prec=_WORKING_DIGITS)):
        return Fraction(_decimal(number).sqrt())


def as_text(value: Fraction) -> str:
    """Return the shortest exact decimal, or one rounded to the limits above."""
    within_limits(value)
    if value.denominator == 1:
        return str(value.numerator)
    try:
        rounded = Context(prec=EXACT_DIGITS, traps=[Inexact]).divide(
            Decimal(value.numerator), Decimal(value.denominator)
        )
    except Inexact:
        digits = max(ROUNDED_DIGITS, len(str(abs(int(value)))))
        rounded = Context(prec=digits).divide(Decimal(value.numerator), Decimal(value.denominator))
    if abs(rounded) < Decimal("1e-9"):
        return f"{rounded.normalize():e}"
    text = f"{rounded:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def as_json(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _whole_power(base: Fraction, exponent: int) -> Fraction:
    """Return a power: exact for short results, to the working digits otherwise."""
    if abs(exponent) * max(base.numerator.bit_length(), base.denominator.bit_length()) <= 20_000:
        return base**exponent
    with localcontext(Context(prec=_WORKING_DIGITS)):
        return Fraction(_decimal(base) ** exponent)


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def _log10(value: Fraction) -> float:
    return log10(abs(value.numerator)) - log10(value.denominator)
