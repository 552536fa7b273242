"""The store of keys and values: what it keeps while it grows, and what it costs."""

import psutil
import torch

from mcp_rl.inference.cache import PAGE, KvShape, KvStore

SHAPE = KvShape(layers=4, kv_heads=2, head_dim=32, dtype=torch.float32, device=torch.device("cpu"))


def resident() -> int:
    """Return the bytes of this process that lie in memory."""
    return int(psutil.Process().memory_info().rss)


def test_growing_keeps_what_rows_hold() -> None:
    store = KvStore(SHAPE)
    store.reserve(3, PAGE, lambda row: 0)
    store.data[:] = torch.randn(store.data.shape)
    before = store.data.clone()
    store.reserve(40, 5 * PAGE, lambda row: {0: PAGE, 1: 1}.get(row, 0))
    assert store.rows >= 40 and store.capacity >= 5 * PAGE
    for row, length in ((0, PAGE), (1, 1)):
        assert torch.equal(store.data[:, :, row, :, :length], before[:, :, row, :, :length])
    assert not store.data[:, :, 2:].any(), "a row of which nothing stays begins with zeros"


def test_room_costs_memory_only_where_it_is_used() -> None:
    store, before = KvStore(SHAPE), resident()
    store.reserve(256, 2048, lambda row: 0)
    room = store.data.numel() * store.data.itemsize
    store.data[:, :, 5, :, :1024] = 1
    store.reserve(256, 3000, lambda row: 1024 if row == 5 else 0)
    assert room == 2**30
    assert resident() - before < room / 10
    assert store.data[:, :, 5, :, :1024].eq(1).all()
