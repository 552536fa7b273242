"""Tries input of strangers for as long as wanted: `python tests/fuzz/fuzz.py --minutes 60`, or `make fuzz`.

Prints each failure once, by the place at which it was raised, with the input. The exit code is 1 if there was any. Each
round of inputs runs in a process of its own with bounded memory and time, so that an input that takes everything, or
never ends, is a failure like any other.
"""

import argparse
import logging
import multiprocessing
import pickle
import random
import reprlib
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from limits import held_now
from slow_targets import SLOW
from targets import TARGETS, Target

_MOST_MEMORY = 3 * 2**30
"""Bytes of address space that a round may take beyond what its process has at the start."""
_ROUND_SECONDS = 1200.0
"""Seconds after which a round is ended, since it waits for something."""
_ROUND_COMPUTES = 300
"""Seconds of processor time after which a round is ended: it is stuck where no signal of Python's reaches it."""
_KEPT = 256 * 2**20
"""Bytes that are given back before a failure for want of memory is described."""
ALL: dict[str, Target] = {**TARGETS, **SLOW}


@dataclass(frozen=True)
class Failure:
    """A failure, described in few words whatever its input was."""

    where: str
    said: str
    trace: str = ""
    value: bytes = field(default=b"", repr=False)
    """Pickle of the input; empty if it cannot be pickled."""


def place(error: BaseException) -> str:
    """Return the kind of an error with the innermost place in our code."""
    frames = [frame for one in leaves(error) for frame in traceback.extract_tb(one.__traceback__)]
    inner = [frame for frame in frames if "/mcp_rl/" in frame.filename] or [
        frame for frame in frames if "/tests/fuzz/" in frame.filename
    ]
    where = f"{inner[-1].filename.rpartition('/mcp_rl/')[2]}:{inner[-1].lineno} {inner[-1].name}" if inner else "?"
    return f"{type(next(leaves(error))).__name__} in {where}"


def leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from leaves(one)
    else:
        yield error


def described(error: BaseException, value: Any) -> Failure:
    """Describe a failure without writing out its input, which may take gigabytes."""
    trace = "".join(traceback.format_exception(error, limit=-8, chain=False))[-4000:]
    pickled = b""
    with suppress(Exception):
        pickled = pickle.dumps(value)
    return Failure(place(error), f"{str(error)[:600]}\n   with {shown(value)}", trace, pickled)


def shown(value: Any) -> str:
    """Return the beginning of a value's representation."""
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = brief.maxlong = 120
    brief.maxdict = brief.maxlist = brief.maxtuple = 8
    brief.maxlevel = 8
    return brief.repr(value)[:1500]


def one_round(target: Target, examples: int, number: int) -> list[Failure]:
    """Try some inputs; return the failures. They are not raised, since hypothesis would print megabytes."""
    failed: list[Failure] = []

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(target.inputs)
    def one(value: Any) -> None:
        try:
            target.run(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failed.append(described(error, value))

    one()
    return failed


def _in_child(answers: Connection, name: str, examples: int, number: int) -> None:
    """Run a round with bounded memory, and send what failed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    most = held_now() + _MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (_ROUND_COMPUTES, _ROUND_COMPUTES + 5))
    reserve: bytearray | None = bytearray(_KEPT)
    try:
        failed = one_round(ALL[name], examples, number)
    except BaseException as error:  # of drawing, or hypothesis itself
        reserve = None
        failed = [described(error, f"the round {number}")]
    del reserve
    answers.send(failed)
    answers.close()


def bounded_round(name: str, examples: int, number: int) -> list[Failure]:
    """Run a round in a process of its own; its death, and a round without end, are failures too."""
    forked = multiprocessing.get_context("fork")
    ours, theirs = forked.Pipe(duplex=False)
    process = forked.Process(target=_in_child, args=(theirs, name, examples, number), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_ROUND_SECONDS):
            return [Failure("no end", f"the round {number} did not end within {_ROUND_SECONDS:g} s")]
        failed: list[Failure] = ours.recv()
        return failed
    except EOFError:
        process.join()
        return [Failure(f"exit {process.exitcode}", f"the process of the round {number} died")]
    finally:
        process.kill()
        process.join()
        ours.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", choices=sorted(ALL), action="append", help="kinds of input; all by default")
    parser.add_argument("--examples", type=int, default=50, help="inputs of one kind before the next kind")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", type=Path, help="folder for pickles of the inputs that failed")
    options = parser.parse_args()
    logging.disable()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    names = options.only or list(ALL)
    for name in names:
        ALL[name].prepare()
    drawn, until = random.Random(options.seed), time.monotonic() + 60 * options.minutes
    seen: set[str] = set()
    tried = 0
    while time.monotonic() < until:
        for name in names:
            examples = max(1, options.examples // ALL[name].costs)
            tried += examples
            for failure in bounded_round(name, examples, drawn.getrandbits(32)):
                where = f"{name}: {failure.where}"
                if where in seen:
                    continue
                seen.add(where)
                print(f"\n== {where}\n{failure.said}\n{failure.trace}")
                if options.keep and failure.value:
                    (options.keep / f"{name}-{len(seen)}.pickle").write_bytes(failure.value)
            print(f"-- {tried} inputs, {len(seen)} failures, {name}", flush=True)
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())
