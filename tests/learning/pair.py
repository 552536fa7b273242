"""Two processes that stay for many tests and do the same at once, each as a rank of one learner."""

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mcp_rl.learning.parallel import Ranks

Act = Callable[..., Any]
"""A function of a module, called with the ranks and what it is given."""


class Pair:
    """Ranks 0 and 1."""

    def __init__(self, ends: Sequence[Connection]) -> None:
        self._ends = ends

    def do(self, act: Act, *given: Any) -> list[Any]:
        """What each rank returns, or the error that it raised."""
        for end in self._ends:
            end.send((act, given))
        answers = []
        for end in self._ends:
            assert end.poll(300), "a rank does not answer"
            answers.append(end.recv())
        return answers


@contextmanager
def pair(folder: Path) -> Iterator[Pair]:
    context = get_context("spawn")
    ends, processes = [], []
    for rank in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(rank, str(folder / "store"), theirs), daemon=True)
        process.start()
        theirs.close()
        ends.append(ours)
        processes.append(process)
    try:
        yield Pair(ends)
    finally:
        for end in ends:
            end.close()
        for process in processes:
            process.kill()
            process.join()
        resource_tracker._resource_tracker._stop()  # it came with the first of them; other tests count our children


def _serve(rank: int, store: str, connection: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    from torch._C._distributed_c10d import FileStore

    ranks = Ranks(rank, 2, FileStore(store, 2), device=torch.device("cpu"), timeout=300)
    try:
        while True:
            act, given = connection.recv()
            try:
                connection.send(act(ranks, *given))
            except Exception as error:
                connection.send(error)
            except BaseException:  # what pytest raises
                connection.send(AssertionError(traceback.format_exc()))
    except EOFError:
        ranks.close()
