"""How functions are compiled, and the records that they share."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numba import njit

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = 64
"""Positions of a row over which attention sums values by themselves."""
NONE = -1
"""Stands for the index of something that a model or a token lacks."""
INWARD, OUTWARD, GATES, DOWN = range(4)
"""A layer's products: queries, keys and values; attention's output; both halves of the feed-forward layer; its output.
"""
BEFORE, AFTER, QUERY, KEY = range(4)
"""A layer's norms: before attention, before the feed-forward layer, of a query and of a key."""
WEIGHT, BIAS, INPUTS, OUTPUTS, LOW_A, LOW_B, RANK = range(7)
"""Columns of `Weights.products`: where the weight, the bias, A and B begin in `Weights.numbers`; and the product's
inputs, outputs and rank, the last two rounded up to a multiple of `PANEL`."""


class Weights(NamedTuple):
    """A model."""

    numbers: Any
    """All weights, one behind the other."""
    products: Any
    """int64 [layers, 4, 7]"""
    norms: Any
    """int64 [layers, 4]: where each begins in `numbers`."""
    head: Any
    """int64 [8]: where the last norm begins, and the columns of the product that makes the logits."""
    embeddings: Any
    """[vocabulary, hidden size]"""
    heads: int
    shared: int
    """Heads of keys and values."""
    dim: int
    """Width of a head."""
    scaling: Any
    """Of scores."""
    floor: Any
    """Of the mean squares in norms."""


class Rotations(NamedTuple):
    """Cosines and sines of positions, each [positions, width of a head]; the first half of the sines is negative."""

    cos: Any
    sin: Any


class Cache(NamedTuple):
    """Keys and values: `KvStore.numbers` and its sizes."""

    numbers: Any
    rows: int
    capacity: int
    trunks: Any
    """[trunks, 3]: the address of a trunk's keys and values, its capacity and its length."""


class TokenArrays(NamedTuple):
    """The tokens of a forward pass: int64 arrays with one entry for each token."""

    ids: Any
    positions: Any
    slots: Any
    """The row of the cache."""
    own: Any
    """The place in the row."""
    trunk_of: Any
    """The trunk that it attends to, or `NONE`."""


@functools.cache
def _digest(folder: Path) -> str:
    """Return a hash of all code that is compiled here and in a folder: Numba sees only changes of the file of a
    function, not of what it calls."""
    files = sorted({*Path(__file__).parent.glob("*.py"), *folder.glob("*.py")})
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def compiled(function: Callable[..., Any], *, brief: bool = False, inner: bool = False) -> Any:
    """Return the function, compiled when it is first called; its code is kept on disk if a folder can be written.

    It releases the interpreter's lock, unless it is so brief that to get the lock back would take longer. It is
    compiled once for each set of its arguments' types. A literal such as 0 or True is a type of its own, so a compiled
    caller passes np.int64(0) or np.bool_(True). inner: only compiled functions can call it, which saves a tenth of the
    time.
    """
    function.__qualname__ += f"_{_digest(Path(function.__code__.co_filename).parent)}"  # a part of the file's name
    options = {"nogil": not brief, "error_model": "numpy", "no_cpython_wrapper": inner, "no_cfunc_wrapper": inner}
    try:
        return njit(function, cache=True, **options)
    except RuntimeError:
        return njit(function, **options)


compiled_inner = functools.partial(compiled, inner=True)
"""`compiled` for functions that only compiled ones call."""


@compiled_inner
def hold(array):
    """Keep a local array up to here: Numba frees it after the last line that names it, pointers to it or not."""
    return len(array)
