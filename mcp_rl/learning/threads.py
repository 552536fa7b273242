"""The number of torch's threads while an update is computed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from mcp_rl.system import threads

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def update_threads() -> Iterator[None]:
    """Let torch compute with the threads of an update in this block, where `prepare_torch_threads` chose them.

    Only for a block beside which nothing else of this process uses torch.
    """
    chosen = threads.update_threads()
    if chosen is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(chosen)
    try:
        yield
    finally:
        torch.set_num_threads(before)
