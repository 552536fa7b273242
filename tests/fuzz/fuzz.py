"""Tries input of strangers for as long as wanted: `python tests/fuzz/fuzz.py --minutes 60`, or `make fuzz`.

Prints each failure once, by the place at which it was raised, with the input. The exit code is 1 if there was any.
"""

import argparse
import logging
import pickle
import random
import resource
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from targets import TARGETS, Target

_MOST_MEMORY = 4 * 2**30
"""Bytes of address space, so that an input that takes all memory ends itself alone."""


def place(error: BaseException) -> str:
    """Return the kind of an error with the innermost place in our code."""
    frames = [frame for one in leaves(error) for frame in traceback.extract_tb(one.__traceback__)]
    inner = [frame for frame in frames if "/mcp_rl/" in frame.filename] or [
        frame for frame in frames if frame.filename.endswith("targets.py")
    ]
    where = f"{inner[-1].filename.rpartition('/mcp_rl/')[2]}:{inner[-1].lineno} {inner[-1].name}" if inner else "?"
    return f"{type(next(leaves(error))).__name__} in {where}"


def leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from leaves(one)
    else:
        yield error


def one_round(target: Target, examples: int, number: int) -> list[tuple[BaseException, Any]]:
    """Try some inputs; return the failures. They are not raised, since hypothesis would print megabytes."""
    failed: list[tuple[BaseException, Any]] = []

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(target.inputs)
    def one(value: Any) -> None:
        try:
            target.run(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failed.append((error, value))

    one()
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", choices=sorted(TARGETS), action="append", help="kinds of input; all by default")
    parser.add_argument("--examples", type=int, default=50, help="inputs of one kind before the next kind")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", type=Path, help="folder for pickles of the inputs that failed")
    options = parser.parse_args()
    logging.disable()
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    drawn, until = random.Random(options.seed), time.monotonic() + 60 * options.minutes
    seen: set[str] = set()
    tried = 0
    while time.monotonic() < until:
        for name in options.only or TARGETS:
            tried += options.examples
            for error, value in one_round(TARGETS[name], options.examples, drawn.getrandbits(32)):
                where = f"{name}: {place(error)}"
                if where in seen:
                    continue
                seen.add(where)
                print(f"\n== {where}\n{str(error)[:300]}\n   with {repr(value)[:1000]}")
                traceback.print_exception(error, limit=-8, file=sys.stdout)
                if options.keep:
                    (options.keep / f"{name}-{len(seen)}.pickle").write_bytes(pickle.dumps(value))
            print(f"-- {tried} inputs, {len(seen)} failures, {name}", flush=True)
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())
