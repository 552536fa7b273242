"""The number of torch's threads while an update is computed."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from mcp_rl.system.threads import UPDATE_THREADS

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def update_threads() -> Iterator[None]:
    """Let torch compute with the threads of an update in this block, where `prepare_torch_threads` chose them.

    Only for a block beside which nothing else of this process uses torch.
    """
    given = os.environ.get(UPDATE_THREADS, "")
    if not given.isdigit():
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(int(given))
    try:
        yield
    finally:
        torch.set_num_threads(before)
