"""Word problems: stories with numbers, and the calculation that each asks for."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

Operator = str
"""One of `+`, `-`, `*`, `/`, `%` and `**`."""
_OPERATORS: dict[type[ast.operator], Operator] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Mod: "%", ast.Pow: "**",
}  # fmt: skip
_TRIES = 30
_LARGEST = 10**9


@dataclass(frozen=True)
class Sum:
    """An operation on two operands, each a number or another operation."""

    operator: Operator
    one: Sum | int
    other: Sum | int

    @cached_property
    def value(self) -> int | None:
        """The result; None unless it and all partial results are whole numbers above 1."""
        one, other = (each.value if isinstance(each, Sum) else each for each in (self.one, self.other))
        if one is None or other is None:
            return None
        if self.operator in ("/", "%") and (other == 0 or (self.operator == "/" and one % other)):
            return None
        if self.operator == "**" and other > 12:
            return None
        match self.operator:
            case "+":
                found = one + other
            case "-":
                found = one - other
            case "*":
                found = one * other
            case "/":
                found = one // other
            case "%":
                found = one % other
            case _:
                found = one**other
        return found if 1 < found <= _LARGEST else None

    @property
    def operators(self) -> set[Operator]:
        inner = [each.operators for each in (self.one, self.other) if isinstance(each, Sum)]
        return {self.operator}.union(*inner)

    def written(self, power: str) -> str:
        """Write the calculation as an expression, with `power` for powers."""
        one, other = (f"({e.written(power)})" if isinstance(e, Sum) else str(e) for e in (self.one, self.other))
        return f"{one} {power if self.operator == '**' else self.operator} {other}"


@dataclass(frozen=True)
class ToldStory:
    """A story with its numbers."""

    text: str
    sums: tuple[Sum, ...]
    names: tuple[str, ...] = ()
    """For a comparison: the owner of each amount, in the words of the answer."""


@dataclass(frozen=True)
class Story:
    """A story with letters for numbers, and the expressions over them that it asks for."""

    text: str
    sums: tuple[str, ...]
    names: tuple[str, ...] = ()
    ranges: tuple[tuple[str, int, int], ...] = ()
    """Ranges of letters, where they differ from the usual one."""
    multiples: tuple[tuple[str, str], ...] = ()
    """Pairs of letters whose first number is a multiple of the second."""

    @property
    def operators(self) -> set[Operator]:
        letters = dict.fromkeys(_letters(self.text), 2)
        return set().union(*(_sum(one, letters).operators for one in self.sums))

    def told(self, draw: random.Random) -> ToldStory | None:
        """Draw numbers for the story; None if no draw gives distinct whole results above 1."""
        for _ in range(_TRIES):
            numbers = self._numbers(draw)
            sums = tuple(_sum(one, numbers) for one in self.sums)
            values = [one.value for one in sums]
            given = [number for letter, number in numbers.items()]
            if None not in values and len(set(values)) == len(values) and not set(values) & set(given):
                return ToldStory(self.text.format(**numbers), sums, self.names)
        return None

    def _numbers(self, draw: random.Random) -> dict[str, int]:
        ranges = {letter: (low, high) for letter, low, high in self.ranges}
        letters = _letters(self.text)
        numbers = {
            letter: draw.randint(*ranges.get(letter, (12, 480) if letter == letters[0] else (3, 60)))
            for letter in letters
        }
        for many, one in self.multiples:
            numbers[many] = numbers[one] * draw.randint(3, 40)
        return numbers


def _letters(text: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"\{(\w)\}", text)))


def _sum(written: str, numbers: dict[str, int]) -> Sum:
    found = _of(ast.parse(written, mode="eval").body, numbers)
    assert isinstance(found, Sum), written
    return found


def _of(node: ast.expr, numbers: dict[str, int]) -> Sum | int:
    match node:
        case ast.BinOp(left, op, right):
            return Sum(_OPERATORS[type(op)], _of(left, numbers), _of(right, numbers))
        case ast.Name(name):
            return numbers[name]
        case ast.Constant(int() as value):
            return value
    raise ValueError(ast.dump(node))


STORIES = (
    # one operation
    Story("What do {a} and {b} come to together?", ("a+b",)),
    Story("I have {a} stamps and get {b} more. How many do I have then?", ("a+b",)),
    Story("One shelf holds {a} books and another one {b}. How many books are that in all?", ("a+b",)),
    Story("How much is left of {a} after {b} are taken away?", ("a-b",)),
    Story("Of {a} tickets, {b} are sold. How many are left?", ("a-b",)),
    Story("Each of {b} rows has {a} seats. How many seats is that?", ("a*b",)),
    Story("A box holds {a} pears. How many do {b} boxes hold?", ("a*b",)),
    Story("A rope of {a} metres is cut into {b} equal parts. How long is each, in metres?", ("a/b",),
          multiples=(("a", "b"),)),
    Story("{b} people split a bill of {a} euros equally. How much does each of them pay?", ("a/b",),
          multiples=(("a", "b"),)),
    Story("{a} eggs are packed {b} to a box. How many do not fill a box?", ("a%b",), ranges=(("b", 4, 24),)),
    Story("A cube of small bricks is {a} bricks long, wide and high. How many bricks is it made of?", ("a**3",),
          ranges=(("a", 4, 60),)),
    Story("How much is {a} to the power of {b}?", ("a**b",), ranges=(("a", 3, 15), ("b", 3, 7))),
    # two and three operations
    Story("{a} crates hold {b} bottles each. On the way {c} bottles break. How many are left?", ("a*b-c",)),
    Story("A school buys {a} tables at {b} euros each and {c} chairs at {d} euros each. What does it pay in all?",
          ("a*b+c*d",)),
    Story("{c} friends rent a house for {a} nights at {b} euros a night and share the cost equally. How many euros "
          "does each of them pay?", ("a*b/c",), ranges=(("a", 2, 20), ("c", 3, 9)), multiples=(("b", "c"),)),
    Story("A shop has {a} lamps, gets {b} more and then sells {c}. How many does it have now?", ("a+b-c",)),
    Story("A tank holds {a} litres of water. {b} buckets of {c} litres are taken out. How many litres are left?",
          ("a-b*c",), ranges=(("a", 500, 2400), ("b", 4, 30), ("c", 5, 15))),
    Story("Each of {a} teams has {b} players and {c} coaches. How many people are that in all?", ("a*(b+c)",),
          ranges=(("a", 5, 40), ("b", 5, 20), ("c", 2, 4))),
    Story("On Monday {a} people came, on Tuesday {b} and on Wednesday {c}. How many came on the three days together?",
          ("a+b+c",), ranges=(("b", 12, 480), ("c", 12, 480))),
    Story("The four floors of a car park have {a}, {b}, {c} and {d} places. How many places does it have?",
          ("a+b+c+d",), ranges=(("b", 40, 200), ("c", 40, 200), ("d", 40, 200))),
    Story("{a} sheets of paper are shared out equally among {b} classes, and each class uses {c} of its own. How many "
          "does each class have left?", ("a/b-c",), ranges=(("c", 2, 20),), multiples=(("a", "b"),)),
    Story("What remains of {a} euros after {b} tickets at {c} euros each and a meal for {d} euros?", ("a-b*c-d",),
          ranges=(("a", 400, 2000), ("b", 2, 12), ("c", 5, 30))),
    Story("A field is {a} metres long and {b} metres wide. How many metres of fence go around it?", ("2*(a+b)",)),
    Story("A bakery makes {a} rolls on each of {b} days and puts them into bags of {c}. How many rolls are left over "
          "in the end?", ("a*b%c",), ranges=(("c", 7, 24),)),
    # comparisons
    Story("The North Hall has {a} rows of {b} seats, the South Hall {c} rows of {d}. Which hall has more seats, and "
          "how many more?", ("a*b", "c*d"), ("North Hall", "South Hall"), ranges=(("a", 8, 60), ("c", 8, 60))),
    Story("Ines sold {a} tickets in May and {b} in June, Tomas {c} and {d}. Who sold more in the two months, and "
          "how many more?", ("a+b", "c+d"), ("Ines", "Tomas"), ranges=(("b", 12, 480), ("c", 12, 480), ("d", 12, 480))),
    Story("The red rope of {a} metres is cut into {b} equal parts, the blue one of {c} metres into {d}. Which rope, "
          "the red or the blue, gives the longer parts, and by how many metres?", ("a/b", "c/d"), ("red", "blue"),
          multiples=(("a", "b"), ("c", "d"))),
    Story("Of the {a} seats in the old bus, {b} are taken, and of the {c} in the new one, {d}. Which bus, the old or "
          "the new, has more free seats, and how many more?", ("a-b", "c-d"), ("old", "new"),
          ranges=(("a", 60, 120), ("c", 60, 120))),
    Story("Mina walks {a} steps a day for {b} days, Hugo {c} a day for {d} days. Who walks more steps in all, and how "
          "many more?", ("a*b", "c*d"), ("Mina", "Hugo"), ranges=(("c", 12, 480),)),
    Story("The grey printer prints {a} pages in {b} minutes, the white one {c} pages in {d}. Which of them, the grey "
          "or the white, prints more pages a minute, and how many more?", ("a/b", "c/d"), ("grey", "white"),
          multiples=(("a", "b"), ("c", "d"))),
    Story("Greta has {a} euros, earns {b} and spends {c}; Paolo has {d}, earns {e} and spends {f}. Who has more in the "
          "end, and how many euros more?", ("a+b-c", "d+e-f"), ("Greta", "Paolo"), ranges=(("d", 12, 480),)),
)  # fmt: skip
"""All stories, from one operation to several."""
