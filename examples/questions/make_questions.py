"""Write a file of questions with reference answers, as other people's files have them. docs/questions.md uses it.

    python make_questions.py questions.jsonl [COUNT]

Most are word problems whose answer follows from one calculation. One in ten needs no tool, and says so.
"""

import json
import random
import sys
from pathlib import Path

PROBLEMS = (
    ("A shop has {a} boxes with {b} pens each. How many pens are there?", lambda a, b: a * b),
    ("{a} seats stand in each of {b} rows. How many seats are there in all?", lambda a, b: a * b),
    ("There were {a} people on the train, and {b} more got on. How many are on it now?", lambda a, b: a + b),
    ("One book has {a} pages, the other {b}. How many pages do both have together?", lambda a, b: a + b),
    ("Of {a} tickets, {b} were sold. How many are left?", lambda a, b: a - b),
    ("A tank held {a} litres, and {b} litres leaked out. How much is still in it?", lambda a, b: a - b),
    ("{a} apples are shared equally among {b} children. How many does each get?", lambda a, b: a // b),
    ("A rope of {a} metres is cut into {b} equal parts. How long is each part?", lambda a, b: a // b),
)
NAMES = "Ada Bruno Carla David Elena Felix Greta Hugo Irene Jonas Karin Lars Maria Nina Oscar Petra".split()  # noqa: SIM905
COLOURS = "red blue green yellow black white brown grey orange purple".split()  # noqa: SIM905


def questions(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Return distinct questions."""
    draw, found = random.Random(seed), dict[str, dict[str, object]]()
    while len(found) < count:
        if draw.random() < 0.1:
            name, colour = draw.choice(NAMES), draw.choice(COLOURS)
            question, answer, tool = f"{name} has a {colour} bike. Which colour is the bike of {name}?", colour, False
        else:
            number, (text, work) = draw.choice(list(enumerate(PROBLEMS)))
            b = draw.randrange(3, 90)
            a = b * draw.randrange(3, 60) if number >= 4 else draw.randrange(3, 900)
            question, answer, tool = text.format(a=a, b=b), str(work(a, b)), True
        row = {"uid": f"q{len(found)}", "question": question, "final_answer": answer, "needs_tool": tool}
        found.setdefault(question, row)
    return list(found.values())


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: python make_questions.py FILE [COUNT]")
    rows = questions(int(sys.argv[2]) if len(sys.argv) == 3 else 500)
    Path(sys.argv[1]).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
