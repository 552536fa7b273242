"""Compiles what an update calls, by calling it with a layer of zeros: no library is imported that takes seconds."""

from __future__ import annotations

import numpy as np

from mcp_rl.inference.native.compiling import Rotations
from mcp_rl.inference.native.vectors import WIDE
from mcp_rl.learning.native.attending import attend, attend_back, gather_back
from mcp_rl.learning.native.passes import inward, inward_back, outward, outward_back
from mcp_rl.learning.native.records import Kept, LayerWeights, ModelSizes, Product, TreeArrays


def compile_update() -> None:
    """Call each function that a training pass calls, with the types of its arguments: one token and one head."""

    def room(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    one, whole = np.zeros(1, np.int64), (0, 1)
    shape = ModelSizes(heads=1, shared=1, dim=WIDE, inner=WIDE, scaling=np.float32(1), floor=np.float32(1))
    outward_of, halves = (Product(room(n), room(n), room(n)) for n in (WIDE * WIDE, 3 * WIDE * WIDE))
    layer = LayerWeights(
        inward=halves,
        outward=outward_of,
        gates=halves,
        down=outward_of,
        before=room(WIDE),
        after=room(WIDE),
        query=room(0),
        key=room(0),
        adapters=np.zeros((7, 4), np.int64),
        low_a=room(0),
        low_b=room(0),
    )
    kept = Kept(
        room(1, WIDE), room(0, 0), room(1, 3 * WIDE), room(1, WIDE), room(1, 1), room(1, WIDE), room(1, 2 * WIDE)
    )
    tree = TreeArrays(one, one, one, np.array([[0, 1, 0, 0, 0]]))
    rotations, out, deltas, sums = Rotations(*room(2, 1, WIDE)), room(1, WIDE), room(1, 1), (room(0), room(0))
    chosen, private = np.zeros((1, 2), np.int64), room(1, 2, 1, WIDE)
    inward(shape, layer, rotations, kept, whole)
    attend(shape, tree, kept.qkv, kept.attended, kept.logs, chosen)
    outward(shape, layer, one, kept, out, whole)
    outward_back(shape, layer, kept, out, room(1, WIDE), deltas, sums, whole)
    attend_back(shape, tree, kept, room(1, WIDE), deltas, private, room(1, 3 * WIDE), chosen)
    gather_back(shape, tree, private, room(1, 3 * WIDE), 0, 0, 1)
    inward_back(shape, layer, rotations, kept, room(1, 3 * WIDE), out, sums, whole)
