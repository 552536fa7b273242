"""A table of which id was sampled after which ids, that decoding looks into and fills."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mcp_rl.inference.native.compiling import NONE, compiled, compiled_inner

CONTEXT = 4
"""Ids that a guess depends on."""
SURE = 2
"""Times that an id followed its context, less twice the times that another one did, from which on it is guessed. In
`benchmarks.guesses` 7 to 8 of 10 guessed ids were then right."""
STEADY = 4
"""Most that is counted, so that a policy that changes is followed."""
SIZE = 1 << 17
"""Contexts that are kept. One that comes to the place of another takes it."""
_FACTOR = np.int64(0x5851F42D4C957F2D)
"""Multiplier of a linear congruential generator (Knuth's MMIX)."""


class Followers(NamedTuple):
    """int64 arrays with one entry for each context that is kept."""

    contexts: Any
    """A hash of it."""
    ids: Any
    """The id that follows it."""
    counts: Any

    @staticmethod
    def none() -> Followers:
        """Return an empty table."""
        return Followers(np.full(SIZE, NONE), np.zeros(SIZE, np.int64), np.zeros(SIZE, np.int64))


NOTHING = Followers(*np.empty((3, 0), np.int64))
"""A table without room, for passes that guess nothing."""


@compiled_inner
def _hash(ids, end):
    """Return a hash of the ids before a place."""
    found = np.int64(0)
    for place in range(end - CONTEXT, end):
        found = found * _FACTOR + ids[place] + 1
    return found ^ (found >> 32)


@compiled
def guess(followers, ids, end, most):
    """Write up to `most` ids that may follow the ids before a place, from that place on; return how many."""
    for count in range(most):
        context = _hash(ids, end + count)
        place = context & (SIZE - 1)
        if followers.contexts[place] != context or followers.counts[place] < SURE:
            return count
        ids[end + count] = followers.ids[place]
    return most


@compiled
def learn(followers, ids, begin, end):
    """Take in that each id from `begin` to `end` was sampled after the ids before it."""
    for at in range(begin, end):
        context, token = _hash(ids, at), ids[at]
        place = context & (SIZE - 1)
        if followers.contexts[place] != context or followers.counts[place] == 0:
            followers.contexts[place], followers.ids[place], followers.counts[place] = context, token, 1
        elif followers.ids[place] == token:
            followers.counts[place] = min(followers.counts[place] + 1, STEADY)
        elif followers.counts[place] <= SURE:
            followers.ids[place], followers.counts[place] = token, 1
        else:
            followers.counts[place] -= SURE


@compiled
def learn_all(followers, ids, counts):
    """Take in what was sampled for rows: ids [rows, CONTEXT + most], of which `counts` are sampled."""
    for row in range(len(ids)):
        learn(followers, ids[row], CONTEXT, CONTEXT + counts[row])
