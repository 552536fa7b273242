"""Data-parallel learning: several processes that learn one policy together, through torch.distributed.

Every rank gets the whole step's groups and computes its share of each minibatch: neighbours in the prefix tree, so that
shared prefixes are computed once. Losses are normalised by the whole minibatch, so the sum of the ranks' gradients is
the gradient of one process; then every rank takes the same optimiser step. Checks decide on sums over the ranks, so
that all ranks raise the same error or none.

Gradients and weights travel by NCCL between GPUs and by gloo between CPUs; counts and columns always by gloo.
"""

from __future__ import annotations

import io
import os
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from mcp_rl.errors import CanaryError, EngineError
from mcp_rl.learning.forward.tree import split_evenly
from mcp_rl.learning.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mcp_rl.learning.samples import Sample

T = TypeVar("T")
Column = npt.NDArray[np.float32]
BUCKET_ELEMENTS = 1 << 26
"""Most gradient elements summed in one message: 256 MiB of float32."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class LostRank(EngineError):
    """A message between the ranks failed: another rank is gone, or did not answer in time."""


class Ranks:
    """The processes that learn together, as seen from one of them."""

    def __init__(
        self, rank: int, size: int, store: torch._C._distributed_c10d.Store, *, device: torch.device, timeout: float
    ) -> None:
        """Join the others; return when all are there.

        `timeout`, in seconds, holds for each message: a rank that is alive and silent for so long counts as lost.
        Raises LostRank.
        """
        self.rank, self.size, self.device = rank, size, device
        self._aborted = False
        wait = timedelta(seconds=timeout)
        # A failed operation is broken off and raises here; otherwise NCCL's own watchdog would end the whole process.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
        with reaching("joining"):
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
            self._plain = dist.new_group(backend="gloo", timeout=wait) if backend != "gloo" else dist.group.WORLD

    @property
    def leads(self) -> bool:
        """Return whether this is the rank that prints and writes."""
        return self.rank == 0

    def close(self) -> None:
        """Leave without waiting for the others; NCCL by itself would wait until all ranks of the machine leave."""
        self.abort()
        if dist.is_initialized():
            with suppress(RuntimeError):  # it was broken off before
                dist.destroy_process_group()

    def abort(self) -> None:
        """Break off, from another thread, the operation that this rank waits for; the waiting thread raises.

        This is for GPUs only: a message between CPUs fails by itself when its other end is gone.
        """
        if self.device.type == "cuda" and not self._aborted and dist.is_initialized() and dist.group.WORLD is not None:
            self._aborted = True
            with suppress(RuntimeError):
                dist.group.WORLD.abort()

    def share(self, samples: Sequence[Sample], *, shared: bool = True) -> list[Sample]:
        """Return this rank's part of a minibatch, in the minibatch's order; it may be empty."""
        parts = split_evenly([sample.tokens for sample in samples], self.size, shared=shared)
        return [samples[index] for index in parts[self.rank]]

    def gather(self, own: T) -> list[T]:
        """Return the values of all ranks, by rank: numbers, tensors, and lists, tuples and mappings of them.

        Every user of the machine can reach the port that gloo listens on, so nothing that could run code is unpickled.
        """
        file = io.BytesIO()
        torch.save(own, file)
        content = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
        with reaching("exchanging counts"):
            lengths = list(torch.zeros(self.size, 1, dtype=torch.int64))
            dist.all_gather(lengths, torch.tensor([len(content)]), group=self._plain)
            longest = int(max(lengths))
            gathered = list(torch.empty(self.size, longest, dtype=torch.uint8))
            dist.all_gather(gathered, F.pad(content, (0, longest - len(content))), group=self._plain)
        parts = (part[: int(length)] for part, length in zip(gathered, lengths, strict=True))
        return [torch.load(io.BytesIO(part.numpy().tobytes()), weights_only=True) for part in parts]

    def total(self, value: float) -> float:
        """Return the sum over the ranks, the same bits on each of them."""
        return sum(self.gather(value))

    def most(self, count: int) -> int:
        """Return the largest count of any rank."""
        return max(self.gather(count))

    def merged(self, own: Tally) -> Tally:
        """Return the merged tally of all ranks."""
        return Tally.of_all(Tally(**fields) for fields in self.gather(vars(own)))

    def exchange(self, samples: Sequence[Sample], own: Sequence[Sample]) -> None:
        """Give every rank the columns that the others computed for their shares of the samples."""
        place = {id(sample): index for index, sample in enumerate(samples)}
        columns = [
            (place[id(sample)], torch.from_numpy(sample.weights), _tensor(sample.old), _tensor(sample.reference))
            for sample in own
        ]
        for found in self.gather(columns):
            for index, weights, old, reference in found:
                sample = samples[index]
                sample.weights, sample.old, sample.reference = weights.numpy(), _array(old), _array(reference)

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace every parameter's gradient by the sum over the ranks; it stays None if no rank has one."""
        every = list(parameters)
        have = torch.tensor([float(p.grad is not None) for p in every], device=self.device)
        with reaching("summing gradients"):
            dist.all_reduce(have)
            for bucket in _buckets([p for p, count in zip(every, have.tolist(), strict=True) if count]):
                flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
                dist.all_reduce(flat)
                for p, summed in zip(bucket, torch.split(flat, [p.numel() for p in bucket]), strict=True):
                    p.grad = summed.view_as(p) if p.grad is None else p.grad.copy_(summed.view_as(p))

    def check_equal(self, parameters: Iterable[Tensor], step: int) -> None:
        """Raise CanaryError if the ranks' weights are not the same bits."""
        sums = torch.stack([_checksum(parameter.detach()) for parameter in parameters]).cpu().tolist()
        found = self.gather(sums)
        different = [rank for rank, other in enumerate(found) if other != found[0]]
        if different:
            raise CanaryError(
                f"At step {step} the weights of learner {different[0]} of {self.size} differ from those of learner 0; "
                "the run stops before they learn different policies."
            )


def _tensor(column: Column | None) -> Tensor | None:
    return None if column is None else torch.from_numpy(column)


def _array(column: Tensor | None) -> Column | None:
    return None if column is None else column.numpy()


def _buckets(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield neighbours of one dtype, at most BUCKET_ELEMENTS elements together; a larger parameter stands alone."""
    bucket: list[Tensor] = []
    size = 0
    for parameter in parameters:
        if bucket and (size + parameter.numel() > BUCKET_ELEMENTS or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel()
    if bucket:
        yield bucket


def _checksum(values: Tensor) -> Tensor:
    """Return sums [2] over the values' bits: plain, and weighted by odd numbers so that swapping two values shows."""
    bits = values.contiguous().flatten().view(_BITS[values.element_size()]).to(torch.int64)
    places = torch.arange(1, 2 * len(bits), 2, device=bits.device)
    return torch.stack([bits.sum(), (bits * places * 0x9E3779B1).sum()])


@contextmanager
def reaching(doing: str) -> Iterator[None]:
    """Turn errors of torch.distributed in this block into LostRank."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LostRank(f"Learners lost each other while {doing}: {line[:300]}") from error
