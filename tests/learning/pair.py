"""Two processes, the ranks of one learner, that stay for many tests and run the same function at once."""

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mcp_rl.learning.parallel import Ranks

Act = Callable[..., Any]
"""A module's function, called with the ranks and further arguments."""


class Pair:
    """Ranks 0 and 1."""

    def __init__(self, ends: Sequence[Connection]) -> None:
        self._ends = ends

    def do(self, act: Act, *given: Any) -> list[Any]:
        """Return the result of each rank, or the error that it raised."""
        for end in self._ends:
            end.send((act, given))
        answers = []
        for end in self._ends:
            assert end.poll(300), "a rank does not answer"
            answers.append(end.recv())
        return answers


@contextmanager
def pair(folder: Path) -> Iterator[Pair]:
    """Start both ranks; they are forked from a process that has imported the tests but computed nothing."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.learning.test_parallel"])
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
        for helper in (forkserver._forkserver, resource_tracker._resource_tracker):
            helper._stop()  # other tests count our children


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
            except BaseException:  # such as pytest raises
                connection.send(AssertionError(traceback.format_exc()))
    except EOFError:
        ranks.close()
